"""Imports, which are nine tenths of what the start of a fleet's process costs."""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

#: What the database driver imports of the standard library. None starts a thread or holds a lock.
_OF_THE_DRIVER = ("asyncio", "decimal", "importlib.metadata", "importlib.resources", "zoneinfo")
#: Modules that each worker and steward imports, and that load neither the driver nor the
#: application; they import what else is like them.
_OF_THE_WORKER = (
    "cmdbus.app_errors",
    "cmdbus.command_log",
    "cmdbus.context",
    "cmdbus.database.connect_errors",
    "cmdbus.integrations.dbapi_statements",
    "cmdbus.producer.batch_requests",
    "cmdbus.producer.process_records",
    "cmdbus.producer.records",
    "cmdbus.producer.refusals",
    "cmdbus.producer.send_hook",
    "cmdbus.registry",
)


def preload() -> None:
    """Before the first fork: each child would import the same again."""
    for name in (*_OF_THE_DRIVER, *_OF_THE_WORKER):
        importlib.import_module(name)


@contextmanager
def without_collections() -> Iterator[None]:
    """In a child that imports modules of cmdbus: none of it is garbage, and each collection reads
    all of it. The application is imported after that."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
