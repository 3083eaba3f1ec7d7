"""The entry point of a node's steward. Imports nothing that runs commands."""

from collections.abc import Callable
from pathlib import Path

from cmdbus.board.board import Node
from cmdbus.errors import CmdbusError
from cmdbus.exits import Exit
from cmdbus.settings import Settings
from cmdbus.worker.boot.process import Stop, enter, failed, flush, load_application
from cmdbus.worker.probes.endpoints import serving
from cmdbus.worker.steward.steward_process import StewardProcess


def run(settings: Settings, node: Node, stacks: Path, unblock: Callable[[], None]) -> Exit:
    """Runs the node's steward until it is ordered to stop. Probes are answered before the
    application is imported, which may take long."""
    descriptor = enter(node, stacks)
    try:
        with serving(settings, node) as threads:
            registry = load_application(settings, descriptor)
            steward = StewardProcess(settings, node, registry, stacks.parent, threads)
            stop = Stop(node, settings, steward.request_stop)
            unblock()
            code = stop.code(steward.run())
            flush(node)
            return code
    except CmdbusError as error:
        return failed(error, node, descriptor)
