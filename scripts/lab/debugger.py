"""Holds a process as a debugger does whose prompt waits: once it has exited, no other process can
reap it until the debugger lets go."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ATTACH = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
print(ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None), flush=True)
sys.stdin.read()
"""


def is_held(pid: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


@contextmanager
def held(pid: int) -> Iterator[bool]:
    """Whether the system let it attach."""
    with subprocess.Popen(
        [sys.executable, "-c", _ATTACH, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as debugger:
        assert debugger.stdin is not None and debugger.stdout is not None
        try:
            yield debugger.stdout.readline() == b"0\n"
        finally:
            debugger.stdin.close()
