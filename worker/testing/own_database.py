"""What tests may change: the commands of a database that is for tests alone. They run all that is
due and delete everything, so a DSN of production is refused.
"""

import psycopg

from cmdbus.clock import time
from cmdbus.database.executor import Executor
from cmdbus.errors import InvalidOperationError
from cmdbus.testing import BEGAN
from cmdbus.worker.claims.claim import Connection

#: The worker of a test's runner.
TESTER = "run_commands"


def check_database(executor: Executor, session: Connection) -> None:
    """An InvalidOperationError if workers have run before these tests began, which may start some
    themselves."""
    values = {"tester": TESTER, "age": time.monotonic() - BEGAN}
    if found := executor.rows(session, "find_earlier_worker", **values):
        [(worker, since)] = found
        database, schema = session.info.dbname, executor.schema
        raise InvalidOperationError(
            f"schema {schema!r} of database {database!r} is not for these tests alone: workers "
            f"have run on it before (worker {worker}, started {since}), and tests run, move and "
            f"delete all commands. Use another database; if this is one of tests, run "
            f'DROP SCHEMA "{schema}" CASCADE and cmdbus init there'
        )


def clear_database(executor: Executor, session: Connection) -> None:
    try:
        executor.execute(session, "clear_tables")
    except psycopg.errors.LockNotAvailable as error:
        raise InvalidOperationError(
            "commands cannot be deleted while a transaction has locked some of them: end it "
            "before, for example a connection of the test's that is still open"
        ) from error
