"""Handlers that return, raise or leave behind what handlers rarely do."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psycopg

from cmdbus import Command, Context, PermanentCommandError
from cmdbus.errors import CmdbusError

#: Marks the effects of a thread that outlives its handler.
KEPT = ".kept"
_NUL_AND_SURROGATE = "nul \x00 and surrogate \ud800"
#: Seconds for which a thread that outlives its handler goes on, and between two of its tries.
_KEPT_S, _KEPT_PAUSE_S = 1.0, 0.005


def odd_result(command: Command, context: Context, run: str) -> object:
    return {"text": _NUL_AND_SURROGATE}


def odd_error(command: Command, context: Context, run: str) -> None:
    raise PermanentCommandError("ODD", _NUL_AND_SURROGATE, {"text": _NUL_AND_SURROGATE})


def system_exit(command: Command, context: Context, run: str) -> None:
    raise SystemExit(3)


def keyboard_interrupt(command: Command, context: Context, run: str) -> None:
    raise KeyboardInterrupt


def cancelled_error(command: Command, context: Context, run: str) -> None:
    raise asyncio.CancelledError


def keep(command: Command, context: Context, run: str) -> None:
    """Leaves its connection to a thread that goes on writing and committing with it."""
    connection = context.connection
    insert = "INSERT INTO chaos.effect (command_id, run) VALUES (%s, %s)"
    connection.execute(insert, (command.command_id, run))

    def go_on() -> None:
        deadline = time.monotonic() + _KEPT_S
        while time.monotonic() < deadline:
            time.sleep(_KEPT_PAUSE_S)
            with suppress(CmdbusError, psycopg.Error):
                connection.execute(insert, (command.command_id, run + KEPT))
            with suppress(CmdbusError, psycopg.Error):
                connection.commit()

    threading.Thread(target=go_on, daemon=True).start()


ODDITIES: dict[str, Callable[[Command, Context, str], object]] = {
    "OddResult": odd_result,
    "OddError": odd_error,
    "SystemExit": system_exit,
    "KeyboardInterrupt": keyboard_interrupt,
    "CancelledError": cancelled_error,
    "Keep": keep,
}
