"""The house rules that a reader may rely on, held by reading the source."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
import tomllib
from enum import Enum
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"cmdbus": "common", "cmdbus.worker": "worker", "cmdbus.supervisor": "supervisor"}
RANK = {"cmdbus": 0, "cmdbus.worker": 1, "cmdbus.supervisor": 2}
#: What decides: functions of values, with the time and the dice passed in.
PURE = ["budget", "checks", "data", "depth", "domains", "effective", "encodings", "outcomes"]
PURE += ["readiness", "refusals", "requests", "retry", "timeouts"]
PURE += ["worker.blame", "worker.dumps", "supervisor.policy", "supervisor.restarts"]
IMPURE = {"os", "time", "random", "secrets", "socket", "subprocess", "threading", "psycopg"}

pytestmark = pytest.mark.skipif(
    not (ROOT / "common").exists(), reason="reads the checkout, and there is none here"
)


def modules() -> list[tuple[str, Path]]:
    return [
        (package, file)
        for package, folder in PACKAGES.items()
        for file in sorted((ROOT / folder).glob("*.py"))
    ]


def imports(file: Path) -> set[str]:
    """Whole dotted names of everything that a module imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: import by whole names"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def package_of(name: str) -> str | None:
    fits = [p for p in PACKAGES if name == p or name.startswith(f"{p}.")]
    return max(fits, key=len) if fits else None


def test_imports_go_from_supervisor_to_worker_to_common() -> None:
    for package, file in modules():
        for name in imports(file):
            target = package_of(name)
            if target:
                assert RANK[target] <= RANK[package], f"{file} must not import {name}"


def file_of(name: str) -> Path:
    folder, _, module = name.rpartition(".")
    return ROOT / (folder or "common") / f"{module}.py"


def is_value(name: str) -> bool:
    """A constant, or a type whose instances nobody can change."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, type):
        return isinstance(found, int | float | str | frozenset)
    frozen = dataclasses.is_dataclass(found) and found.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return bool(frozen) or issubclass(found, Enum | tuple)


def test_what_decides_is_pure() -> None:
    pure = {f"cmdbus.{name}" for name in (*PURE, "errors")}
    for name in PURE:
        used = imports(file_of(name))
        tops = {imported.split(".")[0] for imported in used}
        assert not tops & IMPURE, f"{name} decides, so it must not use {tops & IMPURE}"
        others = {i for i in used if i.startswith("cmdbus.") and i.rpartition(".")[0] not in pure}
        impure = {imported for imported in others if not is_value(imported)}
        assert not impure, f"{name} is pure only if what it uses is, or is a value: {impure}"


def test_every_module_takes_its_clock_from_one_place() -> None:
    """An application that replaces the functions of `time` must not move due times."""
    for _, file in modules():
        if file.name != "clock.py":
            taken = {name for name in imports(file) if name.split(".")[0] == "time"}
            assert not taken, f"{file}: write `from cmdbus.clock import time`"


def test_the_supervisor_names_no_database_driver() -> None:
    for file in sorted((ROOT / "supervisor").glob("*.py")):
        assert not {name for name in imports(file) if name.startswith("psycopg")}, file


def test_no_database_driver_is_loaded_by_what_the_supervising_process_imports() -> None:
    loads = (
        "import sys, cmdbus, cmdbus.supervisor.operate, cmdbus.supervisor.cli;"
        "print([m for m in sys.modules if m.startswith('psycopg')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", loads], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.strip() == "[]"


def test_no_event_loop_is_on_the_way() -> None:
    """M100, M101: synchronous throughout; nothing waits for a loop of somebody else's."""
    for _, file in modules():
        assert not {name for name in imports(file) if name.split(".")[0] == "asyncio"}, file


def test_sql_lives_in_its_files() -> None:
    """M109: no SQL string elsewhere."""
    # Not ALTER and GRANT: sentences advise those.
    verbs = "SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|DROP|COPY|WITH|BEGIN|COMMIT|ROLLBACK"
    verbs += "|TRUNCATE|LOCK TABLE|SET LOCAL|SET SESSION|NOTIFY|VACUUM"
    begins = re.compile(rf"\s*({verbs})\b")
    for _, file in modules():
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                assert not begins.match(text), f"{file}:{node.lineno}"


def test_declared_packages_are_the_directories() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(declared["packages"]) == set(PACKAGES)
    assert declared["package-dir"] == PACKAGES
    for folder in PACKAGES.values():
        nested = {p.parent.name for p in (ROOT / folder).glob("*/*.py")} - {"__pycache__"}
        assert not nested, f"packages are flat: {folder}/{nested} would be missing from the wheel"


def test_no_module_of_common_shadows_a_package() -> None:
    """common/worker.py would win over cmdbus.worker when editable and lose in the wheel."""
    for name in PACKAGES.values():
        assert not (ROOT / "common" / f"{name}.py").exists()
        assert not (ROOT / "common" / name).exists()


def test_each_package_refuses_its_directory_name() -> None:
    for folder in PACKAGES.values():
        done = subprocess.run(
            [sys.executable, "-c", f"import {folder}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert "pip install -e ." in done.stderr


def test_every_public_name_can_be_imported_and_is_known_to_type_checkers() -> None:
    import cmdbus

    for name in cmdbus.__all__:
        assert getattr(cmdbus, name).__name__ == name
    tree = ast.parse((ROOT / "common" / "__init__.py").read_text())
    typed = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cmdbus.")
        for alias in node.names
    }
    assert typed == set(cmdbus.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Job'"):
        cmdbus.Job  # noqa: B018
