"""What the start of a process does for its imports."""

import gc
import subprocess
import sys
from contextlib import suppress

from cmdbus.supervisor.imports import without_collections


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with suppress(ImportError), without_collections():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_the_plugin_of_pytest_loads_no_driver_and_no_worker() -> None:
    """It is loaded in every project of its environment."""
    loads = "import sys, cmdbus.testing.plugin; print([m for m in sys.modules if m in {wanted}])"
    wanted = "('psycopg', 'cmdbus.worker', 'cmdbus.embedded', 'cmdbus.registry')"
    done = subprocess.run(
        [sys.executable, "-c", loads.format(wanted=wanted)],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert done.stdout.strip() == "[]"
