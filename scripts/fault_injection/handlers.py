"""What the instances run, each execution leaving a line at its entry and one at its exit.

The lines go to a file that is appended to, so that they stay whatever becomes of the
process. CMDBUS_CHAOS names its directory, and CMDBUS_CHAOS_NAME the instance, which has a
domain of its own besides the common ones.
"""

import ctypes
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from cmdbus import (
    BusinessRuleError,
    Command,
    Context,
    HandlerRegistry,
    InvalidOperationError,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)
from fault_injection.bridging import register_bridged
from fault_injection.failpoints import DIRECTORY, NAME
from fault_injection.flows import Flow
from fault_injection.guarding import register_guarded
from fault_injection.iterating import ITERATE, iterate
from fault_injection.lanes import register_lanes
from fault_injection.oddities import ODDITIES
from fault_injection.plan import ALL_DOMAINS
from fault_injection.selecting import TAG, TAGGED
from fault_injection.ticking import register_schedules

DOMAIN, REPLIES = "storm", "replies"
DOMAINS = (DOMAIN, *(f"{DOMAIN}.{number:02}" for number in range(1, ALL_DOMAINS)))
#: A type of the common domains that no instance has a handler for.
UNHANDLED = "Unhandled"
RETRY = RetryPolicy(max_attempts=3, backoff=(0.2, 0.5), jitter=0.1)
MARKS, FUSES = "marks", "fuses"

Body = Callable[[Command, Context, str], object]

_numbers = count()
_descriptors: dict[str, int] = {}
_leaked: list[bytes] = []
_CROSSING_S = 0.3
#: Seconds; less than the ladder's thread timeout.
_TIMEOUTS = {"GilShort": 0.5}
_LEAK = 48 * 1024 * 1024


def domain_of(instance: str) -> str:
    return f"only.{instance}"


def registry() -> HandlerRegistry:
    """The app."""
    made = HandlerRegistry()
    for domain in (*DOMAINS, domain_of(os.environ[NAME])):
        for type_, body in BODIES.items():
            timeout = _TIMEOUTS.get(type_)
            made.register(domain, type_, _marked(body), retry=RETRY, timeout=timeout)
    made.register(DOMAIN, TAGGED, _marked(noop), retry=RETRY, tags={TAG})
    register_lanes(made, RETRY, _marked(does))
    register_schedules(made, RETRY, _marked(noop))
    register_guarded(made, RETRY, _marked)
    register_bridged(made, RETRY, _marked(does))
    made.register(REPLIES, "Reply", lambda command, context: None)
    made.register_process(Flow(RETRY))
    return made


def _marked(body: Body) -> Callable[[Command, Context], object]:
    def run(command: Command, context: Context) -> object:
        name = f"{os.getpid()}.{next(_numbers)}"
        _mark("enter", name, command, context)
        how = "raised"
        try:
            result = body(command, context, name)
            how = "returned"
            return {"run": name} if result is None else {"run": name, "result": result}
        finally:
            _mark(how, name, command, context)

    return run


def _mark(what: str, run: str, command: Command, context: Context) -> None:
    path = f"{os.environ[DIRECTORY]}/{MARKS}"
    if path not in _descriptors:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        _descriptors[path] = os.open(path, flags, 0o600)
    line = [time.time(), what, run, os.getpid(), str(command.command_id), context.attempt]
    os.write(_descriptors[path], json.dumps(line).encode() + b"\n")


def _burns(command: Command) -> bool:
    """True as often as the command says: how often it was run is on the disk."""
    fuses = Path(os.environ[DIRECTORY]) / FUSES
    for number in range(command.data["times"]):
        try:
            (fuses / f"{command.command_id}.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False


def does(command: Command, context: Context, run: str) -> object:
    """As the handler of another type."""
    return BODIES[command.data["does"]](command, context, run)


def noop(command: Command, context: Context, run: str) -> None:
    return None


def tx(command: Command, context: Context, run: str) -> None:
    context.connection.execute(
        "INSERT INTO chaos.effect (command_id, run) VALUES (%s, %s)", (command.command_id, run)
    )
    context.connection.execute("SELECT * FROM chaos.wide")
    time.sleep(command.data.get("seconds", 0.0))


def adds(command: Command, context: Context, run: str) -> None:
    """Adds commands to its batch, unless that is canceled."""
    tx(command, context, run)
    assert context.batch is not None
    data = {"added_by": str(command.command_id), "process": command.data.get("process")}
    requests = [SendRequest(command.domain, type_, data) for type_ in command.data["adds"]]
    try:
        context.batch.add(requests)
    except InvalidOperationError as error:
        raise BusinessRuleError("RULE", str(error)) from error


def cross(command: Command, context: Context, run: str) -> None:
    """Its twin takes the same rows in the opposite order."""
    tx(command, context, run)
    for id_ in (command.data["first"], command.data["second"]):
        context.connection.execute("UPDATE chaos.twin SET n = n + 1 WHERE id = %s", (id_,))
        time.sleep(_CROSSING_S)


def io(command: Command, context: Context, run: str) -> None:
    time.sleep(command.data["seconds"])


def transient(command: Command, context: Context, run: str) -> None:
    if context.attempt <= command.data["times"]:
        raise TransientCommandError("TRANSIENT", "not yet")


def permanent(command: Command, context: Context, run: str) -> None:
    raise PermanentCommandError("PERMANENT", "a person must look")


def rule(command: Command, context: Context, run: str) -> None:
    raise BusinessRuleError("RULE", "not allowed")


def undone(command: Command, context: Context, run: str) -> None:
    """Writes, and then fails: nothing of that may stay."""
    tx(command, context, run)
    raise BusinessRuleError("RULE", "not allowed after all")


def segfault(command: Command, context: Context, run: str) -> None:
    if _burns(command):
        ctypes.string_at(0)


def exit_(command: Command, context: Context, run: str) -> None:
    if _burns(command):
        os._exit(9)


def abort_later(command: Command, context: Context, run: str) -> None:
    def wait_and_abort() -> None:
        time.sleep(command.data["seconds"])
        os.abort()

    if _burns(command):
        threading.Thread(target=wait_and_abort, daemon=True).start()


def gil(command: Command, context: Context, run: str) -> None:
    if _burns(command):
        ctypes.PyDLL(None).sleep(60)


def stuck(command: Command, context: Context, run: str) -> None:
    if _burns(command):
        time.sleep(command.data["seconds"])


class HangingLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        threading.Event().wait()


def log_hangs(command: Command, context: Context, run: str) -> None:
    if _burns(command):
        logging.getLogger().addHandler(HangingLog())


def grow(command: Command, context: Context, run: str) -> None:
    for _ in range(command.data["times"]):
        _leaked.append(b"\1" * _LEAK)


def big(command: Command, context: Context, run: str) -> None:
    if len(command.data["payload"]) != command.data["size"]:
        raise PermanentCommandError("DAMAGED", "its payload is not what was sent")


BODIES: dict[str, Body] = {
    "Noop": noop,
    "Tx": tx,
    "Adds": adds,
    ITERATE: iterate,
    "Cross": cross,
    "Io": io,
    "Long": io,
    "Transient": transient,
    "Permanent": permanent,
    "Rule": rule,
    "Undone": undone,
    "Segfault": segfault,
    "Exit": exit_,
    "AbortLater": abort_later,
    "Gil": gil,
    "GilShort": gil,
    "Stuck": stuck,
    "LogHangs": log_hangs,
    "Grow": grow,
    "Big": big,
    **ODDITIES,
}
