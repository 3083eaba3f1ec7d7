"""The example of a program that knows only PGMQ: it imports nothing of cmdbus, and gets an answer
to each message."""

import ast
import os
import re
import subprocess
import sys

import pytest
from programs import SCRIPTS, WITHIN_S, databases

EXAMPLE = SCRIPTS / "pgmq_orders"

pytestmark = pytest.mark.skipif(not EXAMPLE.exists(), reason="needs the checkout's scripts")


def test_its_program_knows_only_pgmq() -> None:
    tree = ast.parse((EXAMPLE / "producer.py").read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"json", "os", "sys", "typing", "psycopg"}


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
def test_each_of_its_orders_gets_an_answer(dsn: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgmq_orders.run", "--orders", "3", "--dsn", dsn],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        *("order 1 of 5: message 1", "order 2 of 5: message 2", "order 3 of 2000: message 3"),
    ]
    found = sorted(re.sub(r"receipt \d", "receipt N", line) for line in lines[3:])
    assert found == [
        "order 1, message 1: SUCCESS, receipt N",
        "order 2, message 2: SUCCESS, receipt N",
        "order 3, message 3: FAILED, LIMIT_EXCEEDED: 2000 is more than 1000",
    ]
    assert databases(dsn, "cmdbus_orders_%") == []
