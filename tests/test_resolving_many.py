"""Many commands in troubleshooting, resolved by one call."""

from datetime import UTC, datetime, timedelta

from handlers import connect, kinds
from queries import move_to_troubleshooting

from cmdbus import CommandBus, SendRequest
from cmdbus.producer.steering import CHUNK


def test_many_are_resolved_at_once_by_condition_and_counted(dsn: str) -> None:
    many = 2 * CHUNK + 50
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        ids = bus.send_many([SendRequest("payments", "Debit", n) for n in range(many)])
        assert move_to_troubleshooting(dsn) == many
        bus.send("orders", "Ship")
        move_to_troubleshooting(dsn, code="BUSY")
        queue = bus.troubleshooting
        assert queue.retry_all("payments", "Ship", operator="ann") == 0
        assert queue.retry_all("payments", limit=10, operator="ann") == 10
        assert queue.retry_all("payments", error_code="GONE", operator="ann") == many - 10
        assert bus.snapshot("payments")["ready"] == many
        order = connection.execute("SELECT count(DISTINCT command_id) FROM cmdbus.ready")
        assert order.fetchone() == (many,)
        assert kinds(bus, ids[-1])[-1] == "OPERATOR_RETRY"
        assert queue.complete_all(error_code="BUSY", result=1, operator="ann") == 1
        assert move_to_troubleshooting(dsn) == many
        assert queue.cancel_all(operator="ann", reason="all of it") == many
        assert len(bus.query("payments", status="CANCELED", limit=1000)) == many


def test_many_large_ones_are_resolved_in_batches_bounded_by_bytes(dsn: str) -> None:
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        for table in ("ready", "troubleshooting"):
            connection.execute(
                f"ALTER TABLE cmdbus.{table} ALTER data SET STORAGE EXTERNAL".encode()
            )
        bus.send_many([SendRequest("payments", "Debit", "x" * 900_000)] * 20)
        move_to_troubleshooting(dsn)
        connection.execute(
            "CREATE FUNCTION count_rows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF (SELECT count(*) FROM gone) > 10 THEN RAISE 'too many in one batch'; END IF;"
            " RETURN NULL; END $$;"
            "CREATE TRIGGER count_rows AFTER DELETE ON cmdbus.troubleshooting"
            " REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION count_rows()"
        )
        assert bus.troubleshooting.retry_all(operator="ann") == 20
        assert bus.snapshot("payments")["ready"] == 20


def test_what_fails_again_while_many_are_retried_is_not_retried_twice(dsn: str) -> None:
    """A worker fails each batch again at once."""
    with CommandBus(dsn) as bus, connect(dsn) as connection:
        bus.send_many([SendRequest("payments", "Debit")] * (CHUNK + 1))
        move_to_troubleshooting(dsn)
        connection.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO cmdbus.troubleshooting (token, created_at, command_id, correlation_id,"
            " priority, attempts, losses, domain, type, data)"
            " VALUES (9, NEW.created_at, NEW.command_id, NEW.correlation_id, 5, 1, 0, NEW.domain,"
            " NEW.type, NEW.data); RETURN NULL; END $$;"
            "CREATE TRIGGER fail BEFORE INSERT ON cmdbus.ready"
            " FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        soon = datetime.now(UTC) + timedelta(hours=1)
        assert bus.troubleshooting.retry_all(until=soon, operator="ann") == CHUNK + 1
        assert bus.troubleshooting.count() == CHUNK + 1
