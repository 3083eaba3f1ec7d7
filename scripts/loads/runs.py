"""What the handlers did, written by themselves: an entry and an exit of each execution.

Each process appends to a file of its own, which stays when it is killed. The bus takes no part
in it, so that its tables can be compared with it.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from cmdbus import Command, Context

#: The environment variable that names the directory of the files.
DIRECTORY = "CMDBUS_LOAD_RUNS"

Handler = Callable[[Command, Context], object]

#: Command id, number of the execution in its process, monotonic nanoseconds, 1 at the exit.
_RECORD = struct.Struct("<16sqqq")
_numbers = count()
_descriptors: dict[int, int] = {}


class Execution(NamedTuple):
    command_id: UUID
    #: Monotonic nanoseconds, which all processes of a machine share.
    entered: int
    #: Of one that has no exit: the last that was written by its process, which died later.
    left: int


def recorded(handler: Handler) -> Handler:
    def run(command: Command, context: Context) -> object:
        descriptor = _descriptor()
        key = command.command_id.bytes, next(_numbers)
        os.write(descriptor, _RECORD.pack(*key, time.monotonic_ns(), 0))
        try:
            return handler(command, context)
        finally:
            os.write(descriptor, _RECORD.pack(*key, time.monotonic_ns(), 1))

    return run


def executions(directory: Path) -> Iterator[Execution]:
    for path in directory.glob("runs.*"):
        yield from _executions_of(path.read_bytes())


def _executions_of(records: bytes) -> Iterator[Execution]:
    running: dict[int, tuple[bytes, int]] = {}
    last = 0
    whole = len(records) - len(records) % _RECORD.size  # a kill may have cut the last one
    for command_id, number, at, is_exit in _RECORD.iter_unpack(records[:whole]):
        last = max(last, at)
        if not is_exit:
            running[number] = command_id, at
        else:
            _, entered = running.pop(number)
            yield Execution(UUID(bytes=command_id), entered, at)
    for command_id, entered in running.values():
        yield Execution(UUID(bytes=command_id), entered, last)


def _descriptor() -> int:
    pid = os.getpid()
    if pid not in _descriptors:
        path = f"{os.environ[DIRECTORY]}/runs.{pid}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        _descriptors[pid] = os.open(path, flags, 0o600)
    return _descriptors[pid]
