"""What an operator types about domains and about many commands."""

import getpass
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from cli import at_terminal, done, here
from click.testing import Result
from queries import move_to_troubleshooting

from cmdbus import CommandBus, SendRequest

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments, **more: here(*arguments, **{"CMDBUS_DSN": dsn, **more})


def test_domains_are_listed_shown_and_configured(bus: CommandBus, run: Run) -> None:
    assert "no domain has settings" in done(run("domain", "list"))
    bus.send("payments", "Debit")
    arguments = ["--max-depth", "9", "--warn-depth", "5", "--keep", "36h", "--closed"]
    shown = done(run("domain", "configure", "payments", *arguments, "--reason", "audit"))
    assert "max depth   9" in shown and "keep        36h after" in shown
    assert f"operator={getpass.getuser()}" in shown and "audit" in shown
    done(run("domain", "configure", "payments", "--max-depth", "none", "--accepting"))
    [record] = bus.domains("payments")
    assert (record.max_depth, record.warn_depth, record.accepting) == (None, 5, True)
    lines = done(run("domain", "list")).splitlines()
    assert lines[1].split() == ["payments", "accepted", "active", "1", "5", "-", "-", "36h"]
    assert "keep        1m after" in done(run("domain", "configure", "orders", "--keep", "0s"))
    listed = json.loads(done(run("domain", "list", "--json")))["domains"]
    keeps = [(each["domain"], each["keep"]) for each in listed]
    assert keeps == [("orders", 0), ("payments", 36 * 3600)]
    shown = json.loads(done(run("domain", "show", "payments", "--json")))
    assert [event["kind"] for event in shown["audit"]] == ["CONFIGURED"] * 2
    assert shown["audit"][0]["details"]["before"]["keep"] == 7 * 86400
    assert shown["audit"][0]["details"]["after"]["keep"] == 36 * 3600 == shown["keep"]
    done(run("pause", "payments", "--operator", "ann", "--reason", "wrong prices"))
    event = bus.domain_audit("payments")[-1]
    assert (event.kind, event.operator, event.message) == ("PAUSED", "ann", "wrong prices")
    assert "yes; to resume it: cmdbus resume payments" in done(run("domain", "show", "payments"))


def test_commands_are_listed_newest_first(bus: CommandBus, run: Run) -> None:
    assert done(run("list")) == "no command meets these conditions\n"
    ids = bus.send_many([SendRequest("payments", "Debit", n) for n in range(3)])
    other = bus.send("orders", "Ship", "secret data")
    bus.cancel("payments", ids[0])
    text = done(run("list", "--limit", "2"))
    assert text.startswith(str(other)) and "secret" not in text
    assert "2 commands shown, and there are more" in text
    assert len(done(run("list")).splitlines()) == 4
    for arguments, expected in (
        (["payments", "--status", "canceled"], ids[:1]),
        (["--domain", "payments", "--limit", "1", "--offset", "2"], ids[:1]),
        (["--type", "Ship", "--since", "1h"], [other]),
        (["--until", "2000-01-01T00:00Z"], []),
    ):
        value = json.loads(done(run("list", *arguments, "--json")))
        assert [each["command_id"] for each in value["commands"]] == list(map(str, expected))


def test_a_search_goes_on_after_its_cursor(dsn: str, bus: CommandBus, run: Run) -> None:
    ids = bus.send_many([SendRequest("payments", "Debit", {"name": f"Ann {n}"}) for n in range(3)])
    move_to_troubleshooting(dsn, "GONE")
    batch = bus.create_batch("payments", [SendRequest("payments", "Debit")])
    arguments = ["list", "payments", "--error-code", "GONE", "--limit", "2"]
    first = json.loads(done(run(*arguments, "--json")))
    assert first["more"] and "data" not in first["commands"][0]
    second = json.loads(done(run(*arguments, "--json", "--after", first["next"])))
    shown = [each["command_id"] for page in (first, second) for each in page["commands"]]
    assert {*shown} == {*map(str, ids)} and len(shown) == 3
    text = done(run(*arguments))
    assert "2 commands shown, and there may be more:\n--after " in text
    assert done(run(*arguments, "--after", text.split()[-1])).count("GONE") == 1
    assert done(run("list", "--text", "ann 1")).startswith(str(ids[1]))
    assert done(run("list", "--text", "nowhere")) == "no command meets these conditions\n"
    assert done(run("list", "--correlation-id", str(ids[0]))).startswith(str(ids[0]))
    assert len(done(run("list", "--batch", str(batch))).splitlines()) == 1
    for wrong, sentence in ((["--offset", "1"], "use --after"), (["--after", "x"], "after must")):
        result = run(*arguments, *wrong)
        assert result.exit_code and sentence in result.stderr


def test_a_command_is_rescheduled_by_the_one_at_the_keyboard(bus: CommandBus, run: Run) -> None:
    id_ = str(bus.send("payments", "Debit", delay=3600))
    assert "priority 0" in done(run("reschedule", "payments", id_, "--now", "--priority", "0"))
    assert bus.snapshot("payments")["ready"] == 1
    result = run("reschedule", "payments", id_, "--at", "2030-01-01T08:00:00+01:00", "--json")
    assert json.loads(done(result))["due_at"] == "2030-01-01T07:00:00+00:00"
    done(run("reschedule", "payments", id_, "--delay", "2h", "--reason", "busy"))
    event = bus.audit("payments", id_)[-1]
    assert (event.operator, event.message) == (getpass.getuser(), "busy")


def test_all_of_a_domain_are_canceled_only_after_a_yes(dsn: str, run: Run) -> None:
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 2)
        bus.send("payments", "Other")
        unasked = run("cancel", "payments", "--all", "--type", "Debit", stdin="y\n")
        assert (unasked.exit_code, unasked.stdout) == (2, "")
        assert "2 commands would be canceled, and there is no terminal to ask at" in unasked.stderr
        asked: Any = ["cancel", "payments", "--all", "--type", "Debit", "--reason", "twice"]
        refused = at_terminal(*asked, "--dsn", dsn, answer="n\n")
        assert "cancel 2 commands (domain payments, type Debit)?" in refused.stderr
        assert (refused.returncode, bus.snapshot("payments")["depth"]) == (1, 3)
        agreed = at_terminal(*asked, "--dsn", dsn, answer="y\n")
        assert (agreed.returncode, agreed.stdout) == (0, "canceled 2 commands\n")
        bus.send("payments", "Debit", delay=60)
        more = partial(bus.send, "payments", "Debit")
        agreed = at_terminal(*asked, "--dsn", dsn, answer="y\n", first=more)
        assert (agreed.returncode, agreed.stdout) == (0, "canceled 1 command\n")
        assert bus.cancel_all("payments", "Debit", reason="twice") == 1
        text = done(run("cancel", "payments", "--all", "--yes", "--json"))
        assert json.loads(text) == {"canceled": 1}
        assert done(run("cancel", "payments", "--all")) == "canceled 0 commands\n"
        assert [record.error_message for record in bus.query(type="Debit")] == ["twice"] * 4


def test_an_error_without_a_message_is_shown_as_its_code(bus: CommandBus, run: Run) -> None:
    command_id = str(bus.send("payments", "Debit"))
    done(run("cancel", "payments", command_id))
    lines = [line.split() for line in done(run("get", "payments", command_id)).splitlines()]
    assert ["error", "CANCELED"] in lines
