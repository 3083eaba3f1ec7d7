"""Entry points of the worker and steward processes. They build everything after the fork, and exit
when they are ordered to stop.

Orders come as signals: TERM stops the process by the time on the board; USR2 writes the stack of
each thread, also while the GIL is held.
"""

import faulthandler
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from cmdbus.board.board import Node
from cmdbus.board.stack_files import open_stacks
from cmdbus.clock import time
from cmdbus.errors import CmdbusError, DatabaseUnavailableError
from cmdbus.exits import Exit
from cmdbus.logs import let_handlers_wait, protect
from cmdbus.registry import HandlerRegistry
from cmdbus.settings import Settings
from cmdbus.timeouts import BOOT_SECONDS
from cmdbus.worker.boot.app import load
from cmdbus.worker.probes.endpoints import serving
from cmdbus.worker.steward.steward_process import StewardProcess
from cmdbus.worker.worker import Worker

logger = logging.getLogger(__name__)

_STDERR = 2


def run(settings: Settings, node: Node, stacks: Path, unblock: Callable[[], None]) -> Exit:
    """Runs commands until it is ordered to stop. `unblock` lets signals come."""
    descriptor = enter(node, stacks)
    try:
        worker = _worker(settings, node, _load(settings, descriptor))
    except (CmdbusError, ValueError) as error:
        return _failed(error, node, descriptor)
    stop = _Stop(node, settings, worker.request_stop)
    unblock()
    try:
        worker.run()
    except DatabaseUnavailableError:
        return stop.code(Exit.DONE)  # ordered to stop while it waited for the database
    except CmdbusError as error:  # Also what an on_start function of the application raised.
        return _failed(error, node, descriptor)
    return stop.code(Exit.UNFINISHED if worker.abandoned else Exit.DONE)


def run_steward(settings: Settings, node: Node, stacks: Path, unblock: Callable[[], None]) -> Exit:
    """Runs the node's steward until it is ordered to stop. Probes are answered before the
    application is imported, which may take long."""
    descriptor = enter(node, stacks)
    try:
        with serving(settings, node) as threads:
            registry = _load(settings, descriptor)
            steward = StewardProcess(settings, node, registry, stacks.parent, threads)
            stop = _Stop(node, settings, steward.request_stop)
            unblock()
            return stop.code(steward.run())
    except CmdbusError as error:
        return _failed(error, node, descriptor)


def _failed(error: Exception, node: Node, stacks: int) -> Exit:
    """Before the process is ready, the supervisor logs the reason: once for all that have it."""
    try:
        if node.seat.is_ready or stacks == _STDERR:
            logger.error("%s", error)
        else:
            os.write(stacks, str(error).encode(errors="replace"))
    except OSError:
        logger.error("%s", error)
    return Exit.CANNOT_START


def _load(settings: Settings, stacks: int) -> HandlerRegistry:
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


def _worker(settings: Settings, node: Node, registry: HandlerRegistry) -> Worker:
    return Worker(
        settings.dsn or "",
        registry,
        domains=settings.domains or None,
        tags=settings.tags,
        priorities=settings.priorities,
        age_share=settings.age_share,
        concurrency=1 if node.quarantine else settings.threads,
        poll_interval=settings.poll_interval,
        timeouts=settings.timeouts,
        schema=settings.schema,
        node=node,
        wake_jitter_ms=settings.wake_jitter_ms,
        claim_bytes=settings.claim_bytes,
    )


class _Stop:
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
