"""The files of SQL, as a process has them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cmdbus.database import statements

WITHOUT_DESCRIPTORS = """
import os, resource
from cmdbus.database import statements
statements.load()
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
try:
    os.open("/dev/null", os.O_RDONLY)
except OSError:
    print(statements.statement("rollback_transaction", "cmdbus").decode())
# What else runs at the end of the process, as a measurement of coverage does, may open files.
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
"""


def test_each_statement_has_a_name_of_its_own() -> None:
    queries = Path(statements.__file__).parent / "sql/queries"
    names = re.findall(r"^-- name: (.+)$", "".join(map(Path.read_text, queries.iterdir())), re.M)
    assert len(names) == len(set(names)) and set(names) <= set(statements.load())


@pytest.mark.process
def test_a_process_without_a_descriptor_left_has_its_statements() -> None:
    """A command whose transaction could not be rolled back would be charged for it."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ROLLBACK;" in done.stdout
