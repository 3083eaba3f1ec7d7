"""What the start of a process does for its imports."""

import gc
from contextlib import suppress

from cmdbus.supervisor.imports import without_collections


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with suppress(ImportError), without_collections():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
