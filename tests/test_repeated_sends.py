"""Sends whose connection dies: repeated once, and never doubled, whenever the first try arrives."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from handlers import beside, connect
from proxy import Proxy
from psycopg_pool import ConnectionPool
from queries import await_lock_waits

from cmdbus import CommandBus, QueueFullError, SendRequest, ShutdownError
from cmdbus.errors import CmdbusError
from cmdbus.producer.ids import new_call
from cmdbus.producer.requests import Outgoing, SendRules
from cmdbus.producer.sending import SendAttempt, Sender
from cmdbus.producer.store import Store


@contextmanager
def slow_commits(dsn: str) -> Iterator[psycopg.Connection]:
    """While the yielded connection's transaction is open, a session that inserts a command waits
    at its commit, and does not end when its client does."""
    with connect(dsn) as connection:
        connection.execute(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON cmdbus.ready"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()"
        )
    with psycopg.connect(dsn) as gate:
        gate.execute("SELECT pg_advisory_xact_lock(4711)")
        yield gate
        with suppress(psycopg.Error):
            gate.rollback()


@pytest.mark.parametrize("own", [False, True], ids=["id of the bus", "own id"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_repeated_send_cannot_double_while_its_first_try_is_on_its_way(
    dsn: str, own: bool, many: bool
) -> None:
    """The first try's client is gone, its backend commits later."""
    with Proxy(dsn) as proxy, CommandBus(proxy.dsn) as bus, slow_commits(dsn) as gate:
        sent: list[object] = []
        id_ = uuid4() if own else None

        def send() -> None:
            if many:
                sent.extend(bus.send_many([SendRequest("payments", "Debit", command_id=id_)]))
            else:
                sent.append(bus.send("payments", "Debit", command_id=id_))

        with beside(send):
            await_lock_waits(dsn)
            proxy.cut()
            await_lock_waits(dsn, 2)  # the repetition for the first try
            gate.rollback()
        assert [record.command_id for record in bus.query("payments")] == sent
        assert id_ is None or sent == [id_]


def test_a_bulk_send_is_repeated_although_its_server_does_not_know_that_its_client_is_gone(
    dsn: str,
) -> None:
    """As after a partition: the first try's session waits for more of the COPY."""
    copying: list[bytes] = []

    def cut_a_copy(data: bytes) -> bytes:
        if len(copying) == 1:
            proxy.cut()
        if b"FROM STDIN" in data or len(copying) == 1:
            copying.append(data)
        return data

    with Proxy(dsn, cut_a_copy) as proxy, CommandBus(proxy.dsn) as bus:
        ids = bus.send_many([SendRequest("payments", "Debit", "x" * 100)] * 20_000)
        assert bus.snapshot("payments")["ready"] == len(set(ids)) == 20_000
    assert len(copying) > 2, "a COPY was cut, and another one made"


STORE = Store("cmdbus")
BACKSLASH_SPACE = "\\ "


def outgoing(own: UUID | None = None) -> Outgoing:
    """With an id of the bus if it brings none of its own."""
    spare = UUID(int=uuid4().int & ~(0xFF << 72) | 0x8C << 72)
    return SendRules.of(None, 1000).check(SendRequest("payments", "Debit", command_id=own), spare)


def refusals(
    connection: psycopg.Connection, command: Outgoing, call: int, *again: bool
) -> list[str | None]:
    """Of each try of this call: whether it is a repetition."""
    return [STORE.enqueue(connection, command, call=call, again=each).refusal for each in again]


@pytest.mark.parametrize("own", [None, uuid4()], ids=["id of the bus", "own id"])
def test_a_first_try_that_arrives_after_its_repetition_does_nothing(
    bus: CommandBus, connection: psycopg.Connection, own: UUID | None
) -> None:
    """Its bytes lay in a proxy meanwhile."""
    command, call = outgoing(own), new_call()
    tries = refusals(connection, command, call, True, False, True)
    assert tries == [None, "repeated", "repeated"]
    bus.cancel("payments", command.command_id)
    assert refusals(connection, command, call, True) == ["repeated"]
    assert bus.snapshot("payments")["depth"] == 0


@pytest.mark.parametrize("own", [None, uuid4()], ids=["id of the bus", "own id"])
@pytest.mark.parametrize("shut", [{"max_depth": 1}, {"accepting": False}], ids=["full", "closed"])
def test_a_repetition_of_what_landed_is_not_refused(
    bus: CommandBus, connection: psycopg.Connection, shut: dict[str, Any], own: UUID | None
) -> None:
    """Its own first try filled the domain, or an operator closed the domain meanwhile."""
    command, call = outgoing(own), new_call()
    assert refusals(connection, command, call, False) == [None]
    bus.configure("payments", **shut)
    assert refusals(connection, command, call, True) == ["repeated"]


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
@pytest.mark.parametrize("own", [None, uuid4()], ids=["id of the bus", "own id"])
@pytest.mark.parametrize("lands", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize(
    ("shut", "refusal"),
    [({"max_depth": 1}, QueueFullError), ({"accepting": False}, ShutdownError)],
)
def test_a_repetition_waits_for_its_first_try_before_it_is_refused(
    dsn: str,
    bus: CommandBus,
    level: str,
    own: UUID | None,
    lands: bool,
    shut: dict[str, Any],
    refusal: type[CmdbusError],
) -> None:
    """Also in a pool whose sessions are not at READ COMMITTED."""
    options = f"-c default_transaction_isolation={level.replace(' ', BACKSLASH_SPACE)}"
    command, call = outgoing(own), new_call()
    bus.send("payments", "Debit")
    with (
        psycopg.connect(dsn) as first,
        ConnectionPool(dsn, kwargs={"options": options}, min_size=1, open=True) as pool,
    ):
        assert refusals(first, command, call, False) == [None]
        bus.configure("payments", **shut)
        answers: list[type[CmdbusError] | None] = []

        def repeat() -> None:
            try:
                with pool.connection() as connection:
                    Sender(STORE).send(connection, command, SendAttempt(call, True))
                answers.append(None)
            except (QueueFullError, ShutdownError) as error:
                answers.append(type(error))

        with beside(repeat):
            await_lock_waits(dsn)
            first.commit() if lands else first.rollback()
    assert answers == [None if lands else refusal]
    assert len(bus.query()) == 1 + (answers == [None])
    if own and answers != [None]:
        bus.configure("payments", max_depth=None, accepting=True)
        assert bus.send("payments", "Debit", command_id=own) == own, "it was given back"


@pytest.mark.parametrize("own", [None, uuid4()], ids=["id of the bus", "own id"])
def test_a_duplicate_stays_one_when_the_call_is_repeated(
    bus: CommandBus, connection: psycopg.Connection, own: UUID | None
) -> None:
    taken = bus.send("payments", "D", command_id=own)
    tries = refusals(connection, outgoing(taken), new_call(), False, True)
    assert tries == ["duplicate", "duplicate"]


@pytest.mark.parametrize("own", [False, True], ids=["id of the bus", "own id"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_send_is_repeated_whose_commit_the_callers_pool_could_not_make(
    dsn: str, own: bool, many: bool
) -> None:
    def cut_at_commit(data: bytes) -> bytes:
        if b"COMMIT" in data and not cut:
            cut.append(data)
            proxy.cut()
        return data

    cut: list[bytes] = []
    id_ = uuid4() if own else None
    with (
        Proxy(dsn, cut_at_commit) as proxy,
        ConnectionPool(proxy.dsn, min_size=1, open=True) as pool,
        CommandBus(pool=pool) as bus,
    ):
        if many:
            [sent] = bus.send_many([SendRequest("payments", "Debit", command_id=id_)])
        else:
            sent = bus.send("payments", "Debit", command_id=id_)
        assert cut and [record.command_id for record in bus.query()] == [sent]
