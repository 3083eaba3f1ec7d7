"""Lines of log that libraries write while a handler runs: they name its command, too.

Only the lines that cmdbus writes to stderr do. Nothing is done for this when a command begins: a
line asks its thread what that executes.
"""

import copy
import logging
import threading
from collections.abc import Callable, Mapping

Find = Callable[[], Mapping[str, object] | None]


class _Thread(threading.local):
    find: Find | None = None


_thread = _Thread()


def name_lines(find: Find) -> None:
    """From now on lines of this thread have the fields that `find` returns, if it does."""
    _thread.find = find


def named(record: logging.LogRecord) -> logging.LogRecord:
    """The record, or a copy with the fields of the command that its thread executes. An attribute
    of the same name gets an underscore, as it does in `context.log`."""
    fields = None if _thread.find is None else _thread.find()
    if not fields or "command_id" in vars(record):
        return record
    found = copy.copy(record)
    own = {f"{name}_": vars(record)[name] for name in fields if name in vars(record)}
    vars(found).update({**own, **fields})
    return found
