"""What an operator types about domains and about many commands."""

import getpass
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from cli import CALL, done, environment_without_ours, here
from click.testing import Result

from cmdbus import CommandBus, SendRequest

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments, **more: here(*arguments, **{"CMDBUS_DSN": dsn, **more})


def test_domains_are_listed_shown_and_configured(dsn: str, run: Run) -> None:
    assert "no domain has settings" in done(run("domain", "list"))
    with CommandBus(dsn) as bus:
        bus.send("payments", "Debit")
        arguments = ["--max-depth", "9", "--warn-depth", "5", "--keep", "36h", "--closed"]
        shown = done(run("domain", "configure", "payments", *arguments, "--reason", "audit"))
        assert "max depth   9" in shown and "keep        36h" in shown
        assert f"operator={getpass.getuser()}" in shown and "audit" in shown
        done(run("domain", "configure", "payments", "--max-depth", "none", "--accepting"))
        [record] = bus.domains("payments")
        assert (record.max_depth, record.warn_depth, record.accepting) == (None, 5, True)
        lines = done(run("domain", "list")).splitlines()
        assert lines[1].split() == ["payments", "accepted", "active", "1", "5", "-", "36h"]
        listed = json.loads(done(run("domain", "list", "--json")))["domains"]
        assert [(each["domain"], each["keep"]) for each in listed] == [("payments", 36 * 3600)]
        shown = json.loads(done(run("domain", "show", "payments", "--json")))
        assert [event["kind"] for event in shown["audit"]] == ["CONFIGURED"] * 2
        assert shown["audit"][0]["details"]["before"]["keep"] == 7 * 86400
        assert shown["audit"][0]["details"]["after"]["keep"] == 36 * 3600 == shown["keep"]
        done(run("pause", "payments", "--operator", "ann", "--reason", "wrong prices"))
        event = bus.domain_audit("payments")[-1]
        assert (event.kind, event.operator, event.message) == ("PAUSED", "ann", "wrong prices")
        assert "yes: cmdbus resume payments" in done(run("domain", "show", "payments"))


@pytest.mark.parametrize(
    ("typed", "code", "sentence"),
    [
        ("domain configure a", 2, "no setting is given: --max-depth"),
        ("domain configure a --max-depth 0", 2, "whole number from 1 to 999999999, or none"),
        ("domain configure a --keep long", 2, "it must be seconds, or like 500ms, 30s"),
        ("domain show nothing", 1, "domain nothing has no settings"),
        ("status nothing", 1, "domain nothing has no settings"),
        ("send a B --run-at 2026-12-01", 2, "2026-12-01T00:00:00Z would be UTC"),
        ("list a --domain b", 2, "either domain a or --domain b"),
        ("list --status LATE", 2, "status must be one of PENDING"),
        ("cancel a", 2, "name a command by DOMAIN and ID, or cancel all"),
        ("cancel a 7 --all", 2, "name a command by DOMAIN and ID, or cancel all"),
        ("cancel a 7 --type B", 2, "go with --all, and not with an ID"),
        ("cancel a --all --running", 2, "--running goes with an ID"),
        ("reschedule a 7", 2, "nothing is to be changed: give a time (--now, --at or --delay)"),
        ("reschedule a 7 --now --delay 5", 2, "--now, --at and --delay each give a time"),
        (f"reschedule a {uuid4()} --now", 1, "domain 'a' has no command"),
    ],
)
def test_mistakes_get_one_sentence(run: Run, typed: str, code: int, sentence: str) -> None:
    result = run(*typed.split())
    assert (result.exit_code, result.stdout) == (code, "")
    assert sentence in result.stderr and "Traceback" not in result.stderr


def test_commands_are_listed_newest_first(dsn: str, run: Run) -> None:
    assert done(run("list")) == "no command meets these conditions\n"
    with CommandBus(dsn) as bus:
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


def test_a_command_is_rescheduled_by_the_one_at_the_keyboard(dsn: str, run: Run) -> None:
    with CommandBus(dsn) as bus:
        id_ = str(bus.send("payments", "Debit", delay=3600))
        assert "priority 0" in done(run("reschedule", "payments", id_, "--now", "--priority", "0"))
        assert bus.snapshot("payments")["ready"] == 1
        told = run("reschedule", "payments", id_, "--at", "2030-01-01T08:00:00+01:00", "--json")
        assert json.loads(done(told))["due_at"] == "2030-01-01T07:00:00+00:00"
        done(run("reschedule", "payments", id_, "--delay", "2h", "--reason", "busy"))
        event = bus.audit("payments", id_)[-1]
        assert (event.operator, event.message) == (getpass.getuser(), "busy")


def test_all_of_a_domain_are_canceled_only_after_a_yes(dsn: str, run: Run) -> None:
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 2)
        bus.send("payments", "Other")
        refused = run("cancel", "payments", "--all", "--type", "Debit", stdin="y\n")
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "2 commands would be canceled, and there is no terminal to ask at: add --yes" in (
            refused.stderr
        )
        assert bus.snapshot("payments")["depth"] == 3
        asked: Any = ["cancel", "payments", "--all", "--type", "Debit", "--reason", "twice"]
        assert "cancel 2 commands (domain payments, type Debit)?" in typed(dsn, asked, b"n\n", 1)
        assert bus.snapshot("payments")["depth"] == 3
        assert "canceled 2 commands" in typed(dsn, asked, b"y\n", 0)
        text = done(run("cancel", "payments", "--all", "--yes", "--json"))
        assert json.loads(text) == {"canceled": 1}
        assert done(run("cancel", "payments", "--all")) == "canceled 0 commands\n"
        assert [record.error_message for record in bus.query(type="Debit")] == ["twice"] * 2


def typed(dsn: str, arguments: list[str], answer: bytes, code: int) -> str:
    """What a terminal shows."""
    ours, its = pty.openpty()
    try:
        os.write(ours, answer)
        finished = subprocess.run(
            [sys.executable, "-c", CALL, *arguments],
            stdin=its,
            capture_output=True,
            text=True,
            timeout=25,
            env={**environment_without_ours(), "CMDBUS_DSN": dsn},
        )
    finally:
        os.close(ours)
        os.close(its)
    assert finished.returncode == code, finished
    return finished.stdout + finished.stderr
