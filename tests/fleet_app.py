"""Handlers that do to their process all that a handler can do, for fleets under test."""

import ctypes
import faulthandler
import logging.config
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from cmdbus import (
    BusinessRuleError,
    Command,
    Context,
    HandlerRegistry,
    RetryPolicy,
    TransientCommandError,
)

registry = HandlerRegistry()
# As Django does when it is set up: it disables the loggers that exist.
logging.config.dictConfig({"version": 1, "root": {"handlers": []}})
# For stacks of their own, as many applications do; a signal's handler needs the main thread.
if sys.stderr is not None:  # as where it was closed
    faulthandler.enable()
signal.signal(signal.SIGUSR2, signal.SIG_IGN)

_QUICK = RetryPolicy(max_attempts=5, backoff=(0.05,))
_leaked: list[bytes] = []
#: The number at which Iterate waits.
HELD_AT = 45


@registry.handler("shop", "Noop")
def noop(command: Command, context: Context) -> None:
    pass


@registry.handler("shop", "Debit", retry=_QUICK)
def debit(command: Command, context: Context) -> None:
    """One effect, then a pause as long as the command asks for, then the commit."""
    context.connection.execute("INSERT INTO effect VALUES (%s)", (command.command_id,))
    if command.data:
        time.sleep(command.data)


@registry.handler("shop", "Gate", retry=_QUICK, timeout=60)
def gate(command: Command, context: Context) -> None:
    """One effect, and no commit before the file is there that its data names."""
    context.connection.execute("INSERT INTO effect VALUES (%s)", (command.command_id,))
    while not Path(command.data).exists():
        time.sleep(0.02)


registry.register("shop", "GateInTime", gate, retry=_QUICK)


@registry.handler("shop", "Wait", retry=_QUICK)
def wait(command: Command, context: Context) -> None:
    """Until the file is there that its data names; nothing of its own in the database."""
    while not Path(command.data).exists():
        time.sleep(0.02)


@registry.handler("shop", "Iterate")
def iterate(command: Command, context: Context) -> None:
    """An effect for each number up to its `count`, with a checkpoint after each 10th; the next
    execution goes on after 30, or if the process stops. At HELD_AT it writes its process id into
    the file `held`, if there is one, and waits until that is gone."""
    for n, number in enumerate(range(context.resumed or 0, command.data["count"]), 1):
        held = Path(command.data["held"])
        while number == HELD_AT and held.exists():
            with suppress(FileNotFoundError), held.open("r+") as file:  # It is not made anew.
                file.write(str(os.getpid()))
            time.sleep(0.02)
        context.connection.execute(
            "INSERT INTO effect VALUES (%s, %s)", (command.command_id, number)
        )
        time.sleep(0.005)
        if n % 10 == 0:
            context.checkpoint(number + 1)
            if n == 30 or context.stopping:
                return context.again()


@registry.handler("shop", "Sleep")
def sleep(command: Command, context: Context) -> None:
    time.sleep(command.data)


@registry.handler("shop", "Hang")
def hang(command: Command, context: Context) -> None:
    threading.Event().wait()


@registry.handler("shop", "FreezeTime")
def freeze_time(command: Command, context: Context) -> None:
    """As freezegun does it: everywhere, 116 days ahead, and standing still. Then it hangs."""
    for name in ("monotonic", "monotonic_ns"):
        real = getattr(time, name)
        frozen = real() + 10**7 * (10**9 if name.endswith("ns") else 1)
        for module in list(sys.modules.values()):
            for attribute, value in list(vars(module).items()):
                if value is real and module.__name__ not in ("threading", "queue"):
                    setattr(module, attribute, lambda frozen=frozen: frozen)
    threading.Event().wait()


@registry.handler("shop", "HoldGil")
def hold_gil(command: Command, context: Context) -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")


@registry.handler("shop", "HoldGilBeyondTimeout", timeout=0.5)
def hold_gil_beyond_timeout(command: Command, context: Context) -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")


@registry.handler("shop", "Abort")
def abort(command: Command, context: Context) -> None:
    os.abort()


@registry.handler("shop", "AbortLater")
def abort_later(command: Command, context: Context) -> None:
    """Returns once the first file of its data is there; its process aborts at the second."""
    returns, aborts = map(Path, command.data)

    def wait_and_abort() -> None:
        while not aborts.exists():
            time.sleep(0.01)
        os.abort()

    threading.Thread(target=wait_and_abort, daemon=True).start()
    while not returns.exists():
        time.sleep(0.01)


@registry.handler("shop", "Segfault")
def segfault(command: Command, context: Context) -> None:
    ctypes.string_at(0)


@registry.handler("shop", "Leave")
def leave(command: Command, context: Context) -> None:
    os._exit(command.data or 0)


@registry.handler("shop", "Orphan")
def orphan(command: Command, context: Context) -> None:
    """Leaves a process behind that exits with 3 when its parent is gone."""
    subprocess.run(["/bin/sh", "-c", "(sleep 0.1; exit 3) &"], check=True)


@registry.handler("shop", "Leak")
def leak(command: Command, context: Context) -> None:
    _leaked.append(os.urandom(1) * command.data)


@registry.handler("shop", "Hog")
def hog(command: Command, context: Context) -> None:
    """Takes all the memory that there is."""
    while True:
        _leaked.append(b"\1" * (8 << 20))


@registry.handler("shop", "Files")
def use_up_files(command: Command, context: Context) -> None:
    with ExitStack() as stack:
        for _ in range(command.data):
            stack.enter_context(Path(os.devnull).open())


@registry.handler("shop", "CloseFiles")
def close_files(command: Command, context: Context) -> None:
    """As a daemon does at its start; here it closes sessions and the process's wake pipes."""
    os.closerange(3, 1000)


@registry.handler("shop", "ReuseFiles")
def reuse_files(command: Command, context: Context) -> None:
    """Closes the pipes of its process, and lets another file have their numbers."""
    silent, _ = os.pipe()
    for number in range(3, silent):
        with suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.dup2(silent, number)


@registry.handler("shop", "EndThreads")
def end_threads(command: Command, context: Context) -> None:
    """All other threads but the main one, as a library for timeouts does it to a wrong one."""
    own_idents = (threading.get_ident(), threading.main_thread().ident)
    for thread in threading.enumerate():
        if thread.ident not in own_idents:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
            )


@registry.handler("shop", "Fail", retry=RetryPolicy(max_attempts=1))
def fail(command: Command, context: Context) -> None:
    raise TransientCommandError("AWAY", "whatever it calls is away")


@registry.handler("shop", "Refuse")
def refuse(command: Command, context: Context) -> None:
    raise BusinessRuleError("REFUSED", "a rule forbids it")


@registry.handler("shop", "FailFrom", retry=RetryPolicy(max_attempts=1))
def fail_in_one(command: Command, context: Context) -> None:
    """In one process of the fleet only: the one that its data names."""
    if os.getpid() == command.data:
        raise TransientCommandError("AWAY", "whatever it calls is away")


@registry.handler("shop", "FailOnce", retry=RetryPolicy(max_attempts=2, backoff=(0.3,), jitter=0))
def fail_once(command: Command, context: Context) -> None:
    if context.attempt == 1:
        raise TransientCommandError("AWAY", "whatever it calls is away")
