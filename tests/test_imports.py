"""What the start of a process does for its imports."""

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from cmdbus.supervisor.imports import without_collections


def test_garbage_is_collected_again_after_an_import_that_fails() -> None:
    with suppress(ImportError), without_collections():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def loaded(module: str, *wanted: str) -> str:
    """Those of `wanted` that are loaded with this module, in a process of its own."""
    code = f"import sys, {module}; print([m for m in sys.modules if m in {wanted}])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()


def test_the_plugin_of_pytest_loads_no_driver_and_no_worker() -> None:
    """It is loaded in every project of its environment."""
    wanted = ["psycopg", "cmdbus.worker", "cmdbus.embedded", "cmdbus.registry"]
    assert loaded("cmdbus.testing.plugin", *wanted) == "[]"


@pytest.mark.parametrize("module", ["steward_entry", "preflight"])
def test_what_runs_no_commands_loads_nothing_of_a_worker(module: str) -> None:
    wanted = ["cmdbus.worker.worker", "cmdbus.worker.execution.execution"]
    assert loaded(f"cmdbus.worker.boot.{module}", *wanted) == "[]"
