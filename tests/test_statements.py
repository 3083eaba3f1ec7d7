"""The files of SQL, as a process has them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cmdbus.worker
from cmdbus.database import statements

#: Methods of an Executor, or of the producer's Connections.
EXECUTING = {"execute", "rows", "row", "value", "records", "change"}

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


def test_no_line_of_sql_is_wider_than_one_of_python() -> None:
    folder = Path(statements.__file__).parent / "sql"
    wide = [
        (file.name, line)
        for file in folder.rglob("*.sql")
        for line in file.read_text().splitlines()
        if len(line) > 100
    ]
    assert wide == []


def test_each_name_that_is_executed_is_a_statement_or_a_function() -> None:
    texts = statements.load()
    known = {*texts, *re.findall(r"CREATE FUNCTION {schema}\.(\w+)", texts["baseline"])}
    package = Path(statements.__file__).parent.parent
    executed = set()
    for file in [*package.rglob("*.py"), *Path(cmdbus.worker.__file__).parent.rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in EXECUTING:
                constants = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                names = [value for value in constants if isinstance(value, str)]
                executed |= {name for name in names[:1] if name.isidentifier()}
    assert len(executed) > 40 and executed <= known


@pytest.mark.process
def test_a_process_without_a_descriptor_left_has_its_statements() -> None:
    """A command whose transaction could not be rolled back would be charged for it."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ROLLBACK;" in done.stdout
