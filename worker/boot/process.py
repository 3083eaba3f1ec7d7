"""What the entry points of worker and steward processes share. These build everything after the
fork, and exit when they are ordered to stop.

Orders come as signals: TERM stops the process by the time on the board; USR2 writes the stack of
each thread, also while the GIL is held.
"""

import faulthandler
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from cmdbus import instrument_hooks
from cmdbus.board.board import Node
from cmdbus.board.stack_files import open_stacks
from cmdbus.clock import time
from cmdbus.exits import Exit
from cmdbus.logs import let_handlers_wait, protect
from cmdbus.registry import HandlerRegistry
from cmdbus.settings import Settings
from cmdbus.timeouts import BOOT_SECONDS
from cmdbus.worker.boot.app import load

logger = logging.getLogger(__name__)

_STDERR = 2
#: Seconds for instruments to send what is left, and those before the stop deadline that are left to
#: the exit: a process that is late is killed.
_FLUSH_SECONDS, _EXIT_SECONDS = 2.0, 0.2


def failed(error: Exception, node: Node, stacks: int) -> Exit:
    """Before the process is ready, the supervisor logs the reason: once for all that have it."""
    try:
        if node.seat.is_ready or stacks == _STDERR:
            logger.error("%s", error)
        else:
            os.write(stacks, str(error).encode(errors="replace"))
    except OSError:
        logger.error("%s", error)
    return Exit.CANNOT_START


def load_application(settings: Settings, stacks: int) -> HandlerRegistry:
    """The application may configure logging when it is imported, import more of cmdbus, and
    have stacks written elsewhere."""
    protect()
    let_handlers_wait()
    registry = load(settings.app)
    protect()
    _write_stacks_to(stacks)
    return registry


def enter(node: Node, stacks: Path) -> int:
    """The first thing that a process of a fleet does. Returns where its stacks are written."""
    # TERM ends a handler's children, too.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    now = time.monotonic_ns()
    due = now + int(BOOT_SECONDS * 1e9)
    node.seat.enter(pid=os.getpid(), generation=node.generation, now=now, due=due)
    descriptor = _STDERR
    try:
        descriptor = open_stacks(stacks)  # open for the life of the process
    except OSError as error:
        logger.debug("stacks go to the log: %s cannot be made (%s)", stacks, error.strerror)
    _write_stacks_to(descriptor)
    return descriptor


def _write_stacks_to(descriptor: int) -> None:
    """When the process crashes, or at USR2. Disabled first: else handlers of signals that the
    application has replaced would not be installed again."""
    faulthandler.disable()
    faulthandler.enable(descriptor, all_threads=True)
    faulthandler.unregister(signal.SIGUSR2)
    faulthandler.register(signal.SIGUSR2, descriptor, all_threads=True)


def flush(node: Node) -> None:
    """The last thing that the process does. A supervised process calls no function of `atexit`, by
    which libraries send what is left."""
    by = node.seat.stop_by
    left = by / 1e9 - time.monotonic() - _EXIT_SECONDS if by else _FLUSH_SECONDS
    instrument_hooks.flush(min(left, _FLUSH_SECONDS))


class Stop:
    """SIGTERM: an order of the supervisor, with its deadline on the board, or from outside."""

    def __init__(self, node: Node, settings: Settings, leave: Callable[[float], None]) -> None:
        self._node = node
        self._drain_timeout = settings.drain_timeout
        self._leave = leave
        self._came = False
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self._came = True
        by = self._node.seat.stop_by
        if not by:
            self._node.seat.terminated = 1
        self._leave(by / 1e9 if by else time.monotonic() + self._drain_timeout)

    def code(self, code: Exit) -> Exit:
        """The exit code of a process that would exit with `code` after an order."""
        return Exit.TERMINATED if self._came and not self._node.seat.stop_by else code
