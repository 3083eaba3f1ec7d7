"""scripts/covered.py: which modules the tests do not run enough of, from a report."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import SCRIPTS

pytestmark = pytest.mark.skipif(not SCRIPTS.exists(), reason="needs the checkout's scripts")


@pytest.fixture
def covered(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("covered")


def report(**percents: float) -> Mapping[str, Any]:
    """By module, without its directory and suffix."""
    files = {
        f"common/{name}.py": {
            "summary": {"percent_covered": percent},
            "missing_lines": [3, 4, 5, 9],
        }
        for name, percent in percents.items()
    }
    return {"files": files, "totals": {"percent_covered": 90.0}}


@pytest.mark.parametrize(
    ("percents", "exceptions", "sentences"),
    [
        ({"bus": 80.0, "ids": 100.0}, [], []),
        (
            {"bus": 79.9, "ids": 100.0},
            [],
            ["common/bus.py: 79.9 % is run, less than 80 %; not lines 3-5, 9"],
        ),
        ({"ids": 100.0}, [], ["common/bus.py: 0.0 % is run, less than 80 %; not lines all"]),
        ({"bus": 12.0, "ids": 80.0}, ["common/bus.py"], []),
        (
            {"bus": 95.0, "ids": 80.0},
            ["common/bus.py"],
            ["common/bus.py: 95.0 % is run: it is no longer an exception"],
        ),
        (
            {"bus": 0.0, "ids": 1.0},
            ["common/bus.py"],
            ["common/ids.py: 1.0 % is run, less than 80 %; not lines 3-5, 9"],
        ),
    ],
)
def test_each_module_below_the_limit_is_listed(
    covered: ModuleType, percents: dict[str, float], exceptions: list[str], sentences: list[str]
) -> None:
    modules = ["common/bus.py", "common/ids.py"]
    reasons = dict.fromkeys(exceptions, "why")
    assert list(covered.shortfalls(report(**percents), modules, reasons)) == sentences


def test_the_exit_code_says_whether_all_modules_reach_the_limit(
    covered: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All modules of the packages, also one that no test has imported."""
    root = SCRIPTS.parent
    modules = [
        str(path.relative_to(root))
        for each in ("common", "worker", "supervisor")
        for path in (root / each).rglob("*.py")
    ]
    for missing, code in ((modules[:0], 0), (modules[:1], 1)):
        files = {
            module: {"summary": {"percent_covered": 85.0}, "missing_lines": [1]}
            for module in modules
            if module not in missing
        }
        path = tmp_path / "report.json"
        path.write_text(json.dumps({"files": files, "totals": {"percent_covered": 85.0}}))
        assert covered.main(str(path)) == code
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"{len(modules)} modules, 85 % is run"
        assert [line.split(":")[0] for line in lines[1:]] == missing
