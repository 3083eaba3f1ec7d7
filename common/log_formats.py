"""The format of a line of log: text for people, or JSON for machines."""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cmdbus.printable import hanging

#: Attributes of every record, which logging refuses in `extra`.
RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
#: The fields of a command in a line for people, in their order.
SHOWN = {
    "command_id": "command",
    "domain": "domain",
    "command_type": "type",
    "attempt": "attempt",
    "correlation_id": "correlation",
}


class TextFormatter(logging.Formatter):
    """Lines after the first are indented, so that none of them looks like an event."""

    def __init__(self, format: str = "%(asctime)s %(levelname)-7s %(process)d %(message)s") -> None:
        super().__init__(format)

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(hanging(super().format(record), "    "))

    def formatMessage(self, record: logging.LogRecord) -> str:
        line, fields = super().formatMessage(record), in_text(vars(record))
        return line if line.endswith(fields) else f"{line} {fields}"  # else it has them already

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _time(record)


def in_text(fields: Mapping[str, object]) -> str:
    """What a line says of its command, as far as that is known:
    `command=ID type=DOMAIN/TYPE attempt=N correlation=ID`. Empty for any other line."""
    if "command_id" not in fields:
        return ""
    known = {shown: fields[name] for name, shown in SHOWN.items() if name in fields}
    if {"domain", "type"} <= known.keys():
        known["type"] = f"{known.pop('domain')}/{known['type']}"
    return " ".join(f"{name}={value}" for name, value in known.items())


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """What a message of cmdbus says of its command is left out of it, as there are fields."""
        fields, message = in_text(vars(record)), record.getMessage()
        event: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "pid": record.process,
            "thread": record.threadName,
            "logger": record.name,
            "message": message.removesuffix(f" {fields}") if fields else message,
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            event["traceback"] = record.exc_text
        if record.stack_info:
            event["stack"] = self.formatStack(record.stack_info)
        more = {key: value for key, value in vars(record).items() if key not in RESERVED}
        try:
            return json.dumps({**more, **event}, default=str, allow_nan=False)
        except (TypeError, ValueError):  # a key, number or circle in `extra` that JSON lacks
            return json.dumps({**{str(key): str(more[key]) for key in more}, **event})


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
