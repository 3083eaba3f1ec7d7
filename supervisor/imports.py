"""Imports, which are nine tenths of what the start of a fleet's process costs."""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager

#: What the database driver imports of the standard library. None starts a thread or holds a lock.
_OF_THE_DRIVER = ("asyncio", "decimal", "importlib.metadata", "importlib.resources", "zoneinfo")


def preload() -> None:
    """Before the first fork: each child would import the same again."""
    for name in _OF_THE_DRIVER:
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
