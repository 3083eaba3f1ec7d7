"""What an operator types about schedules."""

import json
import re
from collections.abc import Callable

import psycopg
import pytest
from cli import done, here
from click.testing import Result
from test_schedule_operations import NIGHTLY, NODE, declaring

from cmdbus import CommandBus

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments: here("schedule", *arguments, CMDBUS_DSN=dsn)


def test_schedules_are_added_shown_paused_run_and_removed(
    bus: CommandBus, run: Run, connection: psycopg.Connection
) -> None:
    assert done(run("list")) == "there is no schedule\n"
    remark = ["--operator", "ann", "--reason", "new box"]
    options = ["--every", "15m", "--missed", "none", "--jitter", "30s", "--priority", "low"]
    shown = done(run("add", "sync", "mail", "Fetch", *options, "--data", '{"a": 1}', *remark))
    lines = shown.splitlines()
    assert lines[0] == "sync  every 15m  mail/Fetch"
    assert re.match(r"  next     20\S+ \S+:00\+00:00  \(in ", lines[1])
    assert lines[2] == "  options  missed none, jitter 30s"
    assert re.fullmatch(r"  added    by ann, \S+ ago: new box", lines[3])
    assert done(run("pause", "sync")).splitlines()[0] == "sync  every 15m  mail/Fetch, paused"
    id_ = done(run("run", "sync")).strip()
    command = bus.get("mail", id_)
    assert command is not None and (command.data, command.priority) == ({"a": 1}, 10)
    assert "paused" not in done(run("resume", "sync"))
    declaring(connection, "shop:registry", NIGHTLY)
    listed = done(run("list")).splitlines()
    assert listed[0] == "nightly  0 3 * * * Europe/Zurich  shop/Close"
    assert listed[3:5] == ["  declared  by shop:registry", "  handled   by no living node"]
    declaring(connection, "store", NIGHTLY)
    assert "  declared  by store (in force), shop:registry\n" in done(run("list"))
    assert done(run("remove", "sync")) == "sync: no schedule\n"
    connection.execute(f"INSERT INTO cmdbus.node {NODE}")
    refused = run("remove", "nightly")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 1)


def test_the_next_ticks_are_shown_in_both_zones(run: Run, connection: psycopg.Connection) -> None:
    declaring(connection, "shop", NIGHTLY)
    lines = done(run("next", "nightly", "--count", "2")).splitlines()
    assert len(lines) == 2
    assert re.match(r"20\S+ 03:00:00\+0[12]:00  20\S+ 0[12]:00:00\+00:00  in ", lines[0])
    found = json.loads(done(run("next", "nightly", "--json")))
    assert (found["name"], len(found["ticks"])) == ("nightly", 5)


def test_schedules_are_shown_as_json(run: Run) -> None:
    record = json.loads(done(run("add", "sync", "mail", "Fetch", "--cron", "0 3 * * *", "--json")))
    assert (record["name"], record["cron"], record["timezone"]) == ("sync", "0 3 * * *", "UTC")
    assert json.loads(done(run("list", "--json"))) == {"schedules": [record]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cron", "0 0 31 2 *"], "it never matches, as no month that it names has such a day"),
        (["--cron", "0 3 * * *", "--timezone", "Zurich"], "must be a name of a time zone, not"),
        (["--every", "soon"], "every of the schedule x must be like '30s', '15m', '2h' or '1d'"),
        ([], "give --cron LINE or --every TIME, one of them"),
        (["--cron", "0 3 * * *", "--timezone", "CEST"], "write it like 'Europe/Zurich'"),
        (["--every", "1h", "--jitter", "25h"], "from 0 to 24 hours, not 90000 s"),
        (["--every", "1h", "--jitter", "long"], "it must be seconds, or like 500ms, 30s, 5m, 2h"),
        (["--every", "1h", "--data", "{"], "it is not JSON"),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, arguments: list[str], sentence: str) -> None:
    refused = run("add", "x", "shop", "Count", *arguments)
    assert (refused.exit_code, sentence in refused.stderr) == (2, True), refused.stderr
    assert "Traceback" not in refused.stderr
