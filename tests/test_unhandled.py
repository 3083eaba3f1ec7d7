"""Commands of a type without a handler are reported, to the log and to `cmdbus status`."""

import logging

import psycopg
import pytest
from crowd import crowded

from cmdbus import CommandBus, SendRequest
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.maintenance import Maintenance
from cmdbus.worker.steward.unhandled import AGAIN_SECONDS, MAX_TYPES, Unhandled, due, sentence

_AGE = "UPDATE cmdbus.ready SET created_at = created_at - interval '1 hour' WHERE type <> 'New'"


def node(*types: str) -> ClaimStatements:
    statements = ClaimStatements("cmdbus", 30.0)
    statements.types = list(types)
    return statements


def test_a_type_that_no_node_at_work_handles_is_reported_once(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    other, this_node = node("shop Other"), node("shop Own")
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as connection:
        bus.send_many([SendRequest("shop", name) for name in ("Own", "Other", "Typo", "Typo")])
        bus.send_many([SendRequest("shop", "New"), SendRequest("elsewhere", "Typo")])
        bus.send("paused", "Typo")
        bus.pause("paused")
        connection.execute(_AGE)
        other.renew(connection, {})
        maintenance = Maintenance(this_node, lambda: connection, ["shop", "paused"])
        with caplog.at_level(logging.WARNING):
            maintenance.maintain(connection)
            Maintenance(other, lambda: connection, []).maintain(connection)
        assert caplog.messages == [sentence("shop", "Typo", 2)]
        # `this_node` has renewed nothing: as far as others know, it is not at work.
        [shop] = bus.domains("shop")
        assert shop.unhandled == ["Own", "Typo"]
        this_node.renew(connection, {})
        this_node.types = ["shop Typo"]
        this_node.renew(connection, {})
        [shop] = bus.domains("shop")
        assert shop.unhandled == ["Own"], "the types that a node handles may change"
        assert bus.domains("paused")[0].unhandled == []


def test_types_are_reported_again_after_an_hour_and_only_some_of_many() -> None:
    found = {("shop", f"T{n}"): 1 for n in range(MAX_TYPES + 5)}
    keys = list(found)
    assert due(found, {}, 0.0) == keys[:MAX_TYPES]
    reported = dict.fromkeys(keys[:MAX_TYPES], 0.0)
    assert due(found, reported, AGAIN_SECONDS - 1) == []
    assert due(found, {keys[1]: 0.0}, 10.0) == [keys[0], *keys[2:MAX_TYPES]]
    assert due(found, reported, AGAIN_SECONDS) == keys[:MAX_TYPES]


def test_the_warning_names_the_type_and_what_to_do() -> None:
    assert sentence("shop", "Typo", 1).startswith(
        "1 command of shop/Typo waits, and no worker of this node handles that type: "
    )
    assert sentence("shop", "Typo", 3).startswith("3 commands of shop/Typo wait, and no worker")
    assert "cancel them (cmdbus cancel shop --all --type Typo)" in sentence("shop", "Typo", 3)


def test_a_count_that_took_too_long_is_not_repeated_soon(dsn: str) -> None:
    this_node = node("shop Own")
    with psycopg.connect(dsn, autocommit=True) as connection:
        unhandled = Unhandled(this_node, ["shop"])
        with crowded(connection, "shop", lambda: Unhandled(this_node, ["shop"]).report(connection)):
            with pytest.raises(psycopg.errors.QueryCanceled):
                unhandled.report(connection)
            unhandled.report(connection)
