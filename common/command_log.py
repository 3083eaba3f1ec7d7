"""Lines of log about one command: they name it by the same fields.

The fields are attributes of the record, so JSON has them as fields. Lines for people have them
after the message; cmdbus writes them into its own messages, so that any other formatter has them,
too.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any
from uuid import UUID

from cmdbus.log_formats import RESERVED, in_text

Fields = Mapping[str, object]


def fields_of(
    command_id: UUID, domain: str, type: str, correlation_id: UUID, attempt: int | None = None
) -> dict[str, object]:
    """Without the attempt where only the command is known."""
    fields: dict[str, object] = {
        "command_id": str(command_id),
        "command_type": type,
        "domain": domain,
        "correlation_id": str(correlation_id),
    }
    return fields if attempt is None else {**fields, "attempt": attempt}


def log_about(
    logger: logging.Logger,
    level: int,
    fields: Fields,
    message: str,
    *args: object,
    exc_info: bool = False,
    traceback: str = "",
) -> None:
    """Logs a line of cmdbus's own about a command, with the exception that is being handled, or
    with a traceback that was formatted before."""
    if not logger.isEnabledFor(level):
        return
    file, line, function, _ = logger.findCaller(stacklevel=2)
    record = logger.makeRecord(
        logger.name,
        level,
        file,
        line,
        f"{message} %s",
        (*args, in_text(fields)),
        sys.exc_info() if exc_info else None,
        function,
        fields,
    )
    record.exc_text = traceback or None
    logger.handle(record)


class CommandLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields to the `extra` of each call. A name in that which every such record has gets
    an underscore: logging would raise a KeyError for it, or the command would be another one."""

    def process(
        self, message: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields = self.extra or {}
        given = kwargs.get("extra") or {}
        renamed = {
            f"{name}_" if name in RESERVED or name in fields else name: given[name]
            for name in given
        }
        kwargs["extra"] = {**renamed, **fields}
        return message, kwargs
