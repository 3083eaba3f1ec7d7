"""The entry point of a worker process. Imports no steward."""

from collections.abc import Callable
from pathlib import Path

from cmdbus.board.board import Node
from cmdbus.errors import CmdbusError, DatabaseUnavailableError
from cmdbus.exits import Exit
from cmdbus.registry import HandlerRegistry
from cmdbus.settings import Settings
from cmdbus.worker.boot.process import Stop, enter, failed, flush, load_application
from cmdbus.worker.worker import Worker


def run(settings: Settings, node: Node, stacks: Path, unblock: Callable[[], None]) -> Exit:
    """Runs commands until it is ordered to stop. `unblock` lets signals come."""
    descriptor = enter(node, stacks)
    try:
        worker = _worker(settings, node, load_application(settings, descriptor))
    except (CmdbusError, ValueError) as error:
        return failed(error, node, descriptor)
    stop = Stop(node, settings, worker.request_stop)
    unblock()
    try:
        worker.run()
    except DatabaseUnavailableError:
        return stop.code(Exit.DONE)  # ordered to stop while it waited for the database
    except CmdbusError as error:  # Also what an on_start function of the application raised.
        return failed(error, node, descriptor)
    finally:
        flush(node)
    return stop.code(Exit.UNFINISHED if worker.abandoned else Exit.DONE)


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
