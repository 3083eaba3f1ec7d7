"""What a test may leave behind, which it must not."""

import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from eventually import eventually

_LEFT_WITHIN_S = 5.0
#: Seconds until the garbage collector is asked: it takes longer than most sessions take to end.
_COLLECTED_AFTER_S = 0.2
#: The ids of processes that the tests of a module share, whose own children come and go.
shared_processes: set[int] = set()
#: The descriptors of sessions that clean databases between tests.
shared_files: set[str] = set()


def assert_soon_empty(what: str, look: Callable[[], object]) -> None:
    for seconds in (_COLLECTED_AFTER_S, _LEFT_WITHIN_S):
        with suppress(AssertionError):
            eventually(lambda: not look(), seconds)
            return
        gc.collect()  # a cycle is no leak
    pytest.fail(f"{what}: {look()}", pytrace=False)


def children() -> set[str]:
    # To ask psutil takes longer than many a test: it reads about all processes of the machine.
    with suppress(OSError):  # where the kernel has no such lists
        tasks = Path("/proc/self/task").iterdir()
        if not any((task / "children").read_text() for task in tasks):
            return set()
    own = [child for child in psutil.Process().children() if child.pid not in shared_processes]
    with suppress(psutil.NoSuchProcess):
        return {
            f"{process.pid} {process.name()}"
            for child in own
            for process in (child, *child.children(recursive=True))
            if process.is_running()
        }
    return children()  # one has ended meanwhile


def open_files() -> set[tuple[str, str]]:
    """Which descriptor is open on what. Nothing where there is no /proc."""
    found = set()
    with suppress(FileNotFoundError):
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the one that reads the directory
                found.add((descriptor.name, str(descriptor.readlink())))
    # multiprocessing keeps the file below its shared memory for as long as the process lives.
    return {
        (number, target)
        for number, target in found
        if "/pym-" not in target and "/proc/" not in target and number not in shared_files
    }


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name[:5] != "pymp-")
