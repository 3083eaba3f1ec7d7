"""What an operator types about commands and queues, against a real database."""

import getpass
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from cli import at_terminal, cmdbus, done, here
from click.testing import Result
from queries import NOWHERE, claim_by_hand, move_to_troubleshooting, rows, scalar
from roles import role

from cmdbus import CommandBus, SendRequest, Status

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments, **more: here(*arguments, **{"CMDBUS_DSN": dsn, **more})


def refusal(result: Result, code: int) -> str:
    """The sentence; nothing else was printed."""
    assert (result.exit_code, result.stdout) == (code, "")
    return result.stderr


def test_a_command_is_sent_with_every_option(bus: CommandBus, run: Run) -> None:
    id_, correlation_id = str(uuid4()), str(uuid4())
    text = f"--priority high --id {id_} --correlation-id {correlation_id} --reply-to orders"
    arguments = [*text.split(), "--max-attempts", "7", "--delay", "5m"]
    result = done(run("send", "payments", "Debit", '{"amount": 5}', *arguments))
    assert result == f"{id_}\n"
    record = bus.get("payments", id_)
    assert record is not None
    assert (record.type, record.data, record.priority) == ("Debit", {"amount": 5}, 0)
    assert (str(record.correlation_id), record.reply_to) == (correlation_id, "orders")
    assert record.max_attempts == 7
    assert timedelta(minutes=4) < record.due_at - record.created_at < timedelta(minutes=6)
    result = done(run("send", "payments", "Debit", "--priority", "3", "--json"))
    later = bus.get("payments", json.loads(result)["command_id"])
    assert later is not None and (later.priority, later.data) == (3, None)
    at = "2030-01-01T08:00:00+01:00"
    third = bus.get("payments", done(run("send", "payments", "X", "--run-at", at)).strip())
    assert third is not None and third.due_at == datetime(2030, 1, 1, 7, tzinfo=UTC)


def test_data_comes_from_the_line_a_file_or_standard_input(
    bus: CommandBus, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"from": "ä file"}')
    for source, stdin, data in (
        ("[1, null]", "", [1, None]),
        (f"@{file}", "", {"from": "ä file"}),
        ("-", '"stdin"', "stdin"),
    ):
        id_ = done(run("send", "payments", "Debit", source, stdin=stdin)).strip()
        record = bus.get("payments", id_)
        assert record is not None and record.data == data


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("send a B {bad", "it is not JSON: Expecting property name"),
        ("send a B text", "a string needs its quotes"),
        ("send a B {'a':1}", "(char 1)."),
        ("send a B " + "[" * 100_000, "it is not JSON"),
        ("send a B NaN", "data is nan"),
        ("send a B @/nowhere", "cannot read /nowhere: No such file"),
        ("send a/b B", "domain must be a letter"),
        ("send a B --delay soon", "it must be seconds, or like 500ms, 30s"),
        ("send a B --run-at 2030-01-01T08:00", "its offset is missing"),
        ("send a B --run-at 2026-12-01", "2026-12-01T00:00:00Z would be UTC"),
        ("send a B --priority urgent", "priority"),
        ("send a B --id 7", "--id: it must be a UUID, not '7'"),
        ("send a B --correlation-id 7", "--correlation-id: it must be a UUID, not '7'"),
        ("send a Débit", "not 'Débit', where 'é' is not ASCII"),
        ("send a B --delay -5", "--delay: it must not be negative, as '-5' is"),
        ("get a 7", "command_id must be a UUID"),
        ("list a --domain b", "either domain a or --domain b"),
        ("list --status LATE", "status must be one of PENDING"),
        ("cancel a", "name a command by DOMAIN and ID, or cancel all"),
        ("cancel a 7 --all", "name a command by DOMAIN and ID, or cancel all"),
        ("cancel a 7 --type B", "go with --all, and not with an ID"),
        ("cancel a --all --running", "--running goes with an ID"),
        ("reschedule a 7", "nothing is to be changed: give a time (--now, --at or --delay)"),
        ("reschedule a 7 --now --delay 5", "--now, --at and --delay each give a time"),
        ("tsq retry", "name commands by DOMAIN and ID"),
        ("tsq retry a", "or retry many with --all"),
        ("tsq retry a 7 --all", "name commands by DOMAIN and ID"),
        ("tsq retry a 7 --type B", "filters and --limit go with"),
        ("tsq retry a --all --yes --operator ", "operator must be 1 to 200"),
        ("tsq cancel a --domain b --all", "either domain a or --domain b"),
        ("tsq list --since soon", "(2h would be two hours ago)"),
        ("tsq complete a 7 --result {", "it is not JSON"),
        ("pause a/b", "domain must be a letter"),
        ("status a/b", "domain must be a letter"),
        ("domain configure a", "no setting is given: --max-depth"),
        ("domain configure a --max-depth 0", "whole number from 1 to 999999999, or none"),
        ("domain configure a --keep long", "it must be seconds, or like 500ms, 30s"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_mistake_gets_one_sentence_before_anything_is_asked_of_the_database(
    typed: str, sentence: str
) -> None:
    text = refusal(here(*typed.split(" "), CMDBUS_DSN=NOWHERE), 2)
    assert sentence in text
    assert len(text) < 600 and "Traceback" not in text


def test_a_command_or_domain_that_is_unknown_gets_one_sentence(run: Run) -> None:
    for typed in ("get a {}", "cancel a {}", "reschedule a {} --now", "tsq retry a {}"):
        text = refusal(run(*typed.format(uuid4()).split()), 1)
        assert "domain 'a' has no command" in text and len(text.splitlines()) == 1
    for typed in ("status nothing", "domain show nothing"):
        assert "domain nothing has no settings" in refusal(run(*typed.split()), 1)


def test_a_missing_right_and_a_missing_schema_are_reported(empty_dsn: str, dsn: str) -> None:
    assert "run cmdbus init" in refusal(here("status", "--dsn", empty_dsn), 1)
    with role(dsn, "producer") as connection:
        name = scalar(connection, "SELECT current_user::text")
        limited = f"{dsn} options='-c role={name}'"
        done(here("send", "payments", "Debit", "--dsn", limited))
        text = refusal(here("tsq", "retry", "--all", "--dsn", limited), 1)
        assert "permission denied" in text and f"cmdbus init --operator {name}" in text
        text = refusal(here("init", "--schema", "other", "--dsn", limited), 1)
        assert "permission denied for database" in text and "GRANT CREATE ON DATABASE" in text
        assert "Traceback" not in text and len(text.splitlines()) == 1
        owner = scalar(
            connection, "SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'cmdbus'"
        )
        text = refusal(here("init", "--dsn", limited), 1)
        assert text.endswith(f"run cmdbus init as the schema's owner, role '{owner}'\n")
        assert "GRANT CREATE" not in text, "which would not help"
        done(here("init", "--dsn", dsn, "--operator", name))
        assert "retried 0 commands" in done(here("tsq", "retry", "--all", "--dsn", limited))


def test_a_command_is_shown_with_all_that_happened(bus: CommandBus, run: Run) -> None:
    id_ = bus.send("payments", "Debit", {"amount": 5})
    bus.cancel("payments", id_, reason="\x1b[31mred", operator="ann")
    text = done(run("get", "payments", str(id_)))
    assert f"payments/Debit  {id_}  CANCELED" in text
    assert '{"amount": 5}' in text and "operator=ann" in text
    assert "reply_to: null" in text
    # A terminal must not obey what others wrote.
    assert "\\x1b[31mred" in text and "\x1b" not in text
    value = json.loads(done(run("get", "payments", str(id_), "--json")))
    assert (value["status"], value["data"]) == ("CANCELED", {"amount": 5})
    assert [event["kind"] for event in value["audit"]] == ["SENT", "CANCELED"]
    shown = json.loads(done(run("tsq", "show", "payments", str(id_), "--json")))
    assert shown == value


def test_a_command_is_canceled_by_the_one_at_the_keyboard(dsn: str, run: Run) -> None:
    with CommandBus(dsn) as bus:
        id_ = bus.send("payments", "Debit")
        assert done(run("cancel", "payments", str(id_), "--reason", "twice"))
        event = bus.audit("payments", id_)[-1]
        assert (event.operator, event.message) == (getpass.getuser(), "twice")
        assert "it has finished" in refusal(run("cancel", "payments", str(id_)), 1)
        running = bus.send("payments", "Debit")
        claim_by_hand(dsn, running)
        assert "it is in progress" in refusal(run("cancel", "payments", str(running)), 1)
        text = done(run("cancel", "payments", str(running), "--running", "--json"))
        assert json.loads(text)["status"] == "CANCELED"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another name behind sudo")
def test_behind_sudo_the_operator_is_the_user_that_called_it(bus: CommandBus, run: Run) -> None:
    id_ = bus.send("payments", "Debit")
    done(run("cancel", "payments", str(id_), SUDO_USER="ann"))
    assert bus.audit("payments", id_)[-1].operator == "ann"


def test_status_counts_by_domain_and_type_also_types_without_a_handler(dsn: str, run: Run) -> None:
    assert done(run("status")) == "nothing waits, nothing runs\n"
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 2)
        move_to_troubleshooting(dsn)
        running = bus.send("payments", "Debit")
        bus.send("payments", "Typo")
        bus.send("payments", "Debit", delay=60)
        bus.send("orders", "Ship")
        claim_by_hand(dsn, running)
        old = "UPDATE cmdbus.ready SET created_at = now() - interval '1 hour' WHERE type = 'Typo'"
        rows(dsn, f"{old} RETURNING id")
        bus.configure("orders", max_depth=1, accepting=False)
        bus.configure("idle", max_depth=5, warn_depth=10)
        bus.pause("idle")
    assert "warn depth  10: never reached" in done(run("domain", "show", "idle"))
    assert "did you mean 'payments'?" in refusal(run("status", "orders", "paymens"), 1)
    text = done(run("status"))
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert lines["Debit"] == ["0", "1", "0", "1", "2", "-"]
    assert lines["Typo"][:5] == ["1", "0", "0", "0", "0"]
    assert max(map(len, text.splitlines())) <= 100
    assert "payments/Typo waits for 60m and none runs: does a worker have a handler" in text
    assert "idle is paused; to resume it: cmdbus resume idle" in text
    assert "orders refuses sends; to accept them: cmdbus domain configure orders --acc" in text
    assert "orders is full: depth 1" in text
    assert "idle has" not in text
    value = json.loads(done(run("status", "payments", "--json")))
    [payments] = value["domains"]
    assert payments["all"]["oldest_age"] >= 3600
    del payments["all"]["oldest_age"]
    counts = {"ready": 1, "scheduled": 1, "limited": 0, "in_progress": 1, "troubleshooting": 2}
    assert payments["all"] == counts
    assert (payments["paused"], set(payments["types"])) == (False, {"Debit", "Typo"})


def test_domains_are_paused_and_resumed(bus: CommandBus, run: Run) -> None:
    bus.send("payments", "Debit")
    assert done(run("pause", "payments", "orders")) == (
        "paused payments\npaused orders, but no command was ever sent to it, or none is kept: "
        "is that its name?\n"
    )
    assert [record.paused for record in bus.domains()] == [True, True]
    assert done(run("pause", "payment")).endswith(": did you mean 'payments'?\n")
    result = json.loads(done(run("resume", "payments", "--json")))
    assert result == {"domains": ["payments"], "paused": False, "unknown": []}
    assert [record.paused for record in bus.domains("payments")] == [False]


def test_the_queue_is_listed_newest_first(dsn: str, run: Run) -> None:
    assert done(run("tsq", "summary")) == "nothing waits for an operator\n"
    assert done(run("tsq", "list")) == "nothing waits for an operator\n"
    with CommandBus(dsn) as bus:
        ids = [bus.send("payments", "Debit", n) for n in range(3)]
        move_to_troubleshooting(dsn, message="x" * 500)
        ship = bus.send("orders", "Ship")
        move_to_troubleshooting(dsn, code="BUSY")
        text = done(run("tsq", "list", "--limit", "2"))
        assert text.startswith(str(ship)) and "2 of 4 commands" in text
        assert max(map(len, text.splitlines())) <= 80
        bus.send("payments", "Debit")
        lines = done(run("list", "payments")).splitlines()
        assert len({line.index("payments/Debit") for line in lines}) == 1, "a column"
        for arguments, found in (
            (["orders"], 1),
            (["--domain", "payments", "--type", "Debit"], 3),
            (["--error-code", "BUSY"], 1),
            (["--since", "1h", "--until", "2000-01-01T00:00:00+00:00"], 0),
        ):
            value = json.loads(done(run("tsq", "list", *arguments, "--json")))
            assert (value["total"], len(value["commands"])) == (found, found)
        counted = done(run("tsq", "summary", "--type", "Debit"))
        assert counted.splitlines()[1].split()[:3] == ["payments/Debit", "GONE", "3"]
        errors = json.loads(done(run("tsq", "summary", "--json")))["errors"]
        assert [each["count"] for each in errors] == [3, 1]
        [last, *_] = json.loads(done(run("tsq", "list", "payments", "--json")))["commands"]
        assert UUID(last["command_id"]) in ids and last["error_code"] == "GONE"
        assert last["data"] in range(3)


def test_single_commands_are_retried_canceled_and_completed(dsn: str, run: Run) -> None:
    with CommandBus(dsn) as bus:
        ids = [bus.send("payments", "Debit", reply_to="orders") for _ in range(4)]
        move_to_troubleshooting(dsn)
        text = ["--operator", "ann", "--reason", "why"]
        first, second, third, fourth = map(str, ids)
        assert done(run("tsq", "retry", "payments", first, second)) == "retried 2 commands\n"
        assert done(run("tsq", "cancel", "payments", third, *text)) == "canceled 1 command\n"
        result = run("tsq", "complete", "payments", fourth, "--result", '{"a": 1}', "--json", *text)
        assert json.loads(done(result)) == {"completed": 1}
        records = [bus.get("payments", id_) for id_ in ids]
        assert [record and record.status for record in records] == [
            Status.PENDING,
            Status.PENDING,
            Status.CANCELED,
            Status.COMPLETED,
        ]
        assert records[3] is not None and records[3].result == {"a": 1}
        assert bus.audit("payments", first)[-1].operator == getpass.getuser()
        assert bus.audit("payments", third)[-1].message == "why"
        result = run("tsq", "retry", "payments", first)
        assert "cannot be retried: it is PENDING" in refusal(result, 1)


def test_of_several_commands_it_is_reported_how_many_were_resolved_before_a_mistake(
    dsn: str, run: Run
) -> None:
    with CommandBus(dsn) as bus:
        ids = [str(bus.send("payments", "Debit")) for _ in range(4)]
        move_to_troubleshooting(dsn)
        text = refusal(run("tsq", "retry", "payments", *ids, "no-id"), 2)
        assert "must be a UUID, not 'no-id'" in text and bus.troubleshooting.count() == 4
        bus.troubleshooting.retry("payments", ids[2], operator="bob")
        text = refusal(run("tsq", "retry", "payments", *ids), 1)
        assert text.startswith(f"Error: retried 2 commands, and then: command {ids[2]}"), text
        assert "it is PENDING" in text and bus.troubleshooting.count() == 1


def test_many_are_resolved_only_after_a_yes(dsn: str, run: Run) -> None:
    with CommandBus(dsn) as bus:
        bus.send_many([SendRequest("payments", "Debit")] * 5)
        bus.send("orders", "Ship")
        move_to_troubleshooting(dsn)
        asked: Any = ["tsq", "retry", "payments", "--all", "--type", "Debit"]
        text = refusal(run(*asked, stdin="y\n"), 2)
        assert "5 commands would be retried, and there is no terminal to ask at: add --yes" in text
        refused = at_terminal(*asked, "--dsn", dsn, answer="n\n")
        assert (refused.returncode, bus.troubleshooting.count()) == (1, 6)
        assert "retry 5 commands (domain payments, type Debit)? [y/N]" in refused.stderr
        agreed = at_terminal(*asked, "--limit", "2", "--json", "--dsn", dsn, answer="y\n")
        assert (agreed.returncode, json.loads(agreed.stdout)) == (0, {"retried": 2})
        assert "retry 2 commands" in agreed.stderr
        fail_again: Any = partial(move_to_troubleshooting, dsn)
        agreed = at_terminal(*asked, "--dsn", dsn, answer="y\n", first=fail_again)
        assert (agreed.returncode, agreed.stdout) == (0, "retried 3 commands\n")
        assert done(run(*asked, "--yes")) == "retried 2 commands\n"
        assert done(run("tsq", "cancel", "--all", "--yes")) == "canceled 1 command\n"
        assert done(run(*asked)) == "retried 0 commands\n"


def test_commands_find_database_and_board_by_the_supervisors_settings_file(
    dsn: str, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a send from the supervisor's directory would go to the embedded server."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "cmdbus.toml"
    file.write_text(f"dsn = {json.dumps(dsn)}\nprocs = 4\nname = 'shop'\nruntime-dir = '/nowhere'")
    done(here("send", "payments", "Debit"))
    assert "payments" in done(here("status"))
    assert "nothing waits" in done(here("tsq", "list"))
    # What is nearer wins.
    assert "run cmdbus init" in refusal(here("status", CMDBUS_DSN=empty_dsn), 1)
    assert "no board of 'shop' in /nowhere" in refusal(here("ps"), 1)
    file.write_text("dsn = [5]")
    assert "cmdbus.toml: 'dsn' must be a number or a string" in refusal(here("status"), 2)


def test_a_process_of_its_own_does_the_same(dsn: str) -> None:
    """The script that is installed, once; with the DSN in a variable that is in no list."""
    sent = cmdbus("send", "payments", "Debit", "-", stdin="[1]", CMDBUS_DSN=dsn)
    assert (sent.returncode, sent.stderr) == (0, "")
    shown = cmdbus("get", "payments", sent.stdout.strip(), "--json", CMDBUS_DSN=dsn)
    assert json.loads(shown.stdout)["data"] == [1]
