"""Calls that change many commands, when one of them cannot be: what is done stays, and the error
says how much that is."""

import psycopg
import pytest
from acting import act
from handlers import connect
from queries import move_to_troubleshooting
from web import ask

from cmdbus import CommandBus, SendRequest
from cmdbus.web import application
from cmdbus.web.actions import commands

_REFUSING = """
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE EXCEPTION 'the disk is full'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON cmdbus.finished FOR EACH ROW
        WHEN (NEW.type = 'Last') EXECUTE FUNCTION public.refuse();
"""
_MANY = [SendRequest("payments", "Debit", key="k")] * 201 + [SendRequest("payments", "Last")]


@pytest.fixture
def refusing(dsn: str) -> None:
    with connect(dsn) as connection:
        connection.execute(_REFUSING)


@pytest.mark.usefixtures("refusing")
def test_an_error_says_how_many_were_canceled_before(dsn: str, bus: CommandBus) -> None:
    ids = bus.send_many(_MANY)
    with pytest.raises(psycopg.errors.RaiseException) as raised:
        bus.cancel_all("payments")
    assert raised.value.__notes__ == ["200 commands had been canceled by then"]
    with psycopg.connect(dsn) as own, pytest.raises(psycopg.errors.RaiseException) as raised:
        bus.cancel_all("payments", connection=own)
    assert not hasattr(raised.value, "__notes__"), "nothing of that transaction lasts"
    bodies = [["payments", str(id_)] for id_ in ids[-2:]]
    target = {"target": {"commands": bodies}, "operator": "ann"}
    page = application(bus)
    reply = ask(page, "/api/actions/cancel", method="POST", body=target)
    assert reply.json == {
        "error": "the database answered: the disk is full; 1 command had been canceled by then"
    }


@pytest.mark.usefixtures("refusing")
def test_an_error_says_how_many_were_resolved_before(dsn: str, bus: CommandBus) -> None:
    bus.send_many(_MANY)
    move_to_troubleshooting(dsn)
    with connect(dsn) as connection:
        connection.execute(
            "UPDATE cmdbus.troubleshooting SET failed_at = now() - interval '1 minute'"
            " WHERE type = 'Debit'"
        )
    with pytest.raises(psycopg.errors.RaiseException) as raised:
        bus.troubleshooting.complete_all(operator="ann")
    assert raised.value.__notes__ == ["200 commands had been completed by then"]


def test_as_many_are_canceled_as_is_said(bus: CommandBus, monkeypatch: pytest.MonkeyPatch) -> None:
    bus.send_many([SendRequest("payments", "Debit", key="k")] * 205)
    bus.send("payments", "Debit", key="k", delay=60)
    assert bus.cancel_all("payments", limit=2) == 2
    assert bus.cancel_all("payments", key="k", limit=201) == 201
    monkeypatch.setattr(commands, "MAX_MATCHED", 1)
    match = {"domain": "payments"}
    answers = [act(bus, "cancel_all", match=match)["done"] for _ in range(3)]
    assert answers == [
        "1 command canceled; 2 of them still wait: repeat it",
        "1 command canceled; 1 of them still wait: repeat it",
        "1 command canceled",
    ]
    with pytest.raises(ValueError, match="limit"):
        bus.cancel_all("payments", limit=0)
