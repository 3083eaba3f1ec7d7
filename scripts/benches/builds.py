"""Two builds of this checkout, compared: the bench of each, in rounds that alternate on one
server. What a build measures is compared with what the other one measures, not with a baseline.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benches.comparison import Comparison, Row, summarize

ROOT = Path(__file__).resolve().parent.parent.parent
_PACKAGES = ("common", "worker", "supervisor")
#: The part of the reference's CPU for a command that all that was added since may cost.
LIMIT = 0.95
_LESS_IS_BETTER = {"ms", "us/command", "statements/s"}

#: The figure of each row.
Figures = dict[str, float]


class Build:
    """A directory whose bench finds this build's packages before the installed ones."""

    def __init__(self, directory: Path) -> None:
        self._scripts = directory / "scripts"
        common, *rooms = (directory / name for name in _PACKAGES)
        package = common.rename(self._scripts / "cmdbus")
        for room in rooms:
            room.rename(package / room.name)

    def measure(self, rows: Sequence[str], dsn: str, arguments: Sequence[str]) -> Figures:
        bench = str(self._scripts / "bench")
        command = [sys.executable, bench, *rows, "--dsn", dsn, "--rounds", "1"]
        done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        if not results:
            raise ValueError(f"the bench of {self._scripts.parent.name} has measured nothing")
        return {result["scenario"]: result["figure"] for result in results}


@contextmanager
def builds(revision: str) -> Iterator[tuple[Build, Build]]:
    """That of the revision, and that of the files as they are now."""
    with tempfile.TemporaryDirectory(prefix="cmdbus-bench-") as directory:
        reference, present = Path(directory, revision.replace("/", "-")), Path(directory, "now")
        reference.mkdir()
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", revision, "--", "scripts", *_PACKAGES],
            capture_output=True,
        )
        if archive.returncode:
            raise ValueError(f"no revision {revision}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", reference], input=archive.stdout, check=True)
        for name in ("scripts", *_PACKAGES):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, present / name, ignore=ignored)
        yield Build(reference), Build(present)


def compare(
    revision: str, rows: Sequence[Row], dsn: str, rounds: int, arguments: Sequence[str]
) -> list[dict[str, object]]:
    """A result for each row that both have: the figure of now, that of the revision as its
    baseline. Only CPU has a limit, as rates differ by more between two runs of one build."""
    # One of each measurement: a row that is new would be unknown to the reference.
    names = list({row.measure: row.name for row in reversed(rows)}.values())
    pairs: list[tuple[Figures, Figures]] = []
    with builds(revision) as (reference, present):
        for number in range(rounds):
            print(f"round {number + 1} of {rounds} ...", file=sys.stderr)
            if number % 2:
                now = present.measure(names, dsn, arguments)
                pairs.append((reference.measure(names, dsn, arguments), now))
            else:
                before = reference.measure(names, dsn, arguments)
                pairs.append((before, present.measure(names, dsn, arguments)))
    results = []
    for row in rows:
        if all(row.name in figures for pair in pairs for figures in pair):
            comparison = Comparison(
                pairs=[(one[row.name], two[row.name]) for one, two in pairs],
                less=row.unit in _LESS_IS_BETTER,
            )
            limit = LIMIT if row.name.endswith("-cpu") else None
            results.append(summarize(replace(row, limit=limit, goal=None, why=""), [comparison]))
    return results
