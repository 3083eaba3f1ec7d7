"""Log lines on stderr, for people or for machines: one event, one line, written at once.

Nobody waits for who reads them: while the pipe is full or its reader gone, lines are
dropped and counted, and the next one that gets through says how many.
"""

import json
import logging
import os
import select
from datetime import UTC, datetime
from typing import Any

_STDERR = 2
#: A write of so much to a pipe is whole or not at all.
_AT_ONCE = select.PIPE_BUF
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def set_up(format: str, level: str) -> None:
    """For this process, and those that it forks."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # It reports each connection that is taken.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


class StderrHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if self._dropped:
                text = f"({self._dropped} lines of log were dropped before this one)\n{text}"
            self._write(text.encode("utf-8", "backslashreplace") + b"\n")
            self._dropped = 0
        except (OSError, ValueError):
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def _write(self, data: bytes) -> None:
        while data:
            if not select.select([], [_STDERR], [], 0)[1]:
                raise BlockingIOError
            data = data[os.write(_STDERR, data[:_AT_ONCE]) :]


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(process)d %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time(record)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "pid": record.process,
            "thread": record.threadName,
            "logger": record.name,
            "message": record.getMessage(),
        }
        event.update({key: value for key, value in vars(record).items() if key not in _OWN})
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
