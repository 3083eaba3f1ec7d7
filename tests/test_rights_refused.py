"""The errors of a role without rights, and a grant to no role."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import psycopg
import pytest
from eventually import eventually
from handlers import connect
from psycopg.conninfo import make_conninfo
from roles import role

from cmdbus import CommandBus, SchemaError, SendRequest
from cmdbus.database.schema import install
from cmdbus.errors import MissingRightError
from cmdbus.worker.claims.claim_statements import ClaimStatements


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("producer", lambda bus: bus.send("payments", "Debit")),
        ("producer", lambda bus: bus.send_many([SendRequest("payments", "Debit")])),
        ("producer", lambda bus: bus.cancel("payments", uuid4())),
        ("operator", lambda bus: bus.cancel_all("payments")),
        ("operator", lambda bus: bus.query()),
        ("operator", lambda bus: bus.breakers.audit("stripe")),
        ("monitor", lambda bus: bus.domains()),
        ("monitor", lambda bus: bus.troubleshooting.summary()),
    ],
)
def test_a_missing_right_names_the_role_and_the_one_option_that_grants_it(
    dsn: str, kind: str, call: Callable[[CommandBus], object]
) -> None:
    name = f"cmdbus_test_nothing_{uuid4().hex[:8]}"
    with connect(dsn) as admin:
        admin.execute(f"CREATE ROLE {name}".encode())
        try:
            missing = pytest.raises(MissingRightError, match=rf"role '{name}' lacks a right")
            with (
                CommandBus(make_conninfo(dsn, options=f"-c role={name}")) as bus,
                missing as raised,
            ):
                call(bus)
            assert str(raised.value).endswith(f" run cmdbus init --{kind} {name}")
        finally:
            admin.execute(f"DROP ROLE {name}".encode())


def test_rights_cannot_be_granted_to_a_role_that_is_not_there(dsn: str) -> None:
    with pytest.raises(SchemaError, match="there is no role 'nobody_here'"):
        install(dsn, grants={"worker": ["nobody_here"]})
    with pytest.raises(ValueError, match="no kind of role 'king'"):
        install(dsn, grants={"king": ["postgres"]})


def test_a_worker_that_may_not_see_what_holds_a_lock_is_told_so(dsn: str) -> None:
    with ExitStack() as opened:
        holder, waiter = (opened.enter_context(psycopg.connect(dsn)) for _ in range(2))
        holder.execute("SET application_name = 'the report'; LOCK TABLE effect")
        reader = opened.enter_context(role(dsn, "worker"))
        pool = opened.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(waiter.execute, "LOCK TABLE effect")
        key = {"pid": waiter.info.backend_pid}
        statements = ClaimStatements("cmdbus", 30)
        [blocker] = eventually(lambda: statements.rows(reader, "read_session", **key)[0][1])
        assert blocker.startswith(f"pid {holder.info.backend_pid} (the report, role ")
        assert blocker.endswith("): only roles in pg_monitor see what it runs")
        holder.rollback()
        waiting.result()
