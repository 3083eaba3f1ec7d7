"""Whether the tests run enough of each module: covered.py REPORT, which `coverage json` wrote.

Prints each module below the limit, and ends with 1 if there is one. Of a process that is
killed with SIGKILL nothing is measured; a module that runs in no others is listed here.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

#: Percent of the statements of each module that the tests must run.
LIMIT = 80.0
#: Modules that are measured less, and the reason.
EXCEPTIONS: Mapping[str, str] = {}
_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("common", "worker", "supervisor")


def shortfalls(
    report: Mapping[str, Any], modules: Iterable[str], exceptions: Mapping[str, str]
) -> Iterator[str]:
    """A sentence for each of `modules` that is below the limit, or that is an exception and
    no longer needs to be one. All are paths; a module that is missing in the report has not
    been imported by any test."""
    for module in sorted({*modules, *exceptions}):
        file = report["files"].get(module)
        percent = file["summary"]["percent_covered"] if file else 0.0
        if percent < LIMIT and module not in exceptions:
            missing = _ranges(file["missing_lines"]) if file else "all"
            yield f"{module}: {percent:.1f} % is run, less than {LIMIT:.0f} %; not lines {missing}"
        elif percent >= LIMIT and module in exceptions:
            yield f"{module}: {percent:.1f} % is run: it is no longer an exception"


def _ranges(lines: Iterable[int]) -> str:
    """1, 2, 3, 7 as 1-3, 7."""
    found: list[list[int]] = []
    for line in lines:
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in found)


def main(path: str) -> int:
    report = json.loads(Path(path).read_text())
    modules = [
        str(file.relative_to(_ROOT)) for each in _PACKAGES for file in (_ROOT / each).rglob("*.py")
    ]
    total = report["totals"]["percent_covered"]
    found = list(shortfalls(report, modules, EXCEPTIONS))
    print(f"{len(modules)} modules, {total:.0f} % is run", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
