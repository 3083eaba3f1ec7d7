"""What an operator types about batches."""

import getpass
import json
from uuid import uuid4

import pytest
from batches import DEBIT
from cli import done, here
from handlers import beside, do_nothing, handling, running
from test_operate_domains import Run

from cmdbus import CommandBus
from cmdbus.supervisor.cli.batches import bar


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments, **more: here(*arguments, **{"CMDBUS_DSN": dsn, **more})


def test_batches_are_listed_newest_first(bus: CommandBus, run: Run) -> None:
    assert done(run("batch", "list")) == "no batch meets these conditions\n"
    one = bus.create_batch("payments", [DEBIT], name="March")
    two = bus.create_batch("orders", [DEBIT] * 2)
    bus.cancel_batch(two)
    head, *lines = [line.split() for line in done(run("batch", "list")).splitlines()]
    assert head[4:] == ["TOTAL", "COMPLETED", "FAILED", "CANCELED", "TROUBLE", "CREATED"]
    assert [line[:-2] for line in lines] == [
        [str(two), "CANCELED", "orders", "-", "2", "0", "0", "2", "0"],
        [str(one), "PENDING", "payments", "March", "1", "0", "0", "0", "0"],
    ]
    assert "1 batch shown, and there are more" in done(run("batch", "list", "--limit", "1"))
    for arguments, expected in (
        (["--status", "pending"], [one]),
        (["--named", "March", "--since", "1h"], [one]),
        (["--until", "2000-01-01T00:00Z"], []),
    ):
        value = json.loads(done(run("batch", "list", *arguments, "--json")))
        assert [each["batch_id"] for each in value["batches"]] == list(map(str, expected))


def test_the_commands_of_a_batch_are_listed(bus: CommandBus, run: Run) -> None:
    bus.send_many([DEBIT])
    batch_id = str(bus.create_batch("payments", [DEBIT] * 2))
    rows = done(run("batch", "commands", batch_id, "--status", "pending")).splitlines()
    [one, two] = bus.batch_commands(batch_id)
    assert [row.split()[:2] for row in rows] == [
        [str(each.command_id), "PENDING"] for each in (one, two)
    ]
    more = done(run("batch", "commands", batch_id, "--limit", "1")).splitlines()[1:]
    assert more == ["1 command shown, and there are more: --limit and --offset"]
    value = json.loads(done(run("batch", "commands", batch_id, "--status", "FAILED", "--json")))
    assert value == {"commands": [], "more": False}


def test_a_batch_is_shown_with_its_progress_and_its_audit_trail(bus: CommandBus, run: Run) -> None:
    batch_id = bus.create_batch("payments", [DEBIT] * 4, name="March", data={"month": 3})
    [command, *_] = bus.batch_commands(batch_id)
    bus.cancel("payments", command.command_id)
    shown = done(run("batch", "show", str(batch_id)))
    assert shown.startswith(f"payments  {batch_id}  PENDING\n  [##########....")
    assert "] 25 %  1 of 4" in shown and "BATCH_CREATED" in shown and '{"month": 3}' in shown
    assert f"  batch           {batch_id}" in done(run("get", "payments", str(command.command_id)))
    value = json.loads(done(run("batch", "show", str(batch_id), "--json")))
    assert (value["total"], value["canceled"], value["remaining"]) == (4, 1, 3)
    assert [event["kind"] for event in value["audit"]] == ["BATCH_CREATED"]
    for arguments, sentence in (
        ([str(uuid4())], "there is no batch"),
        (["7"], "batch_id must be a UUID"),
    ):
        refused = run("batch", "show", *arguments)
        assert refused.exit_code != 0 and sentence in refused.stderr


def test_a_batch_is_watched_until_it_is_over(dsn: str, bus: CommandBus, run: Run) -> None:
    batch_id = bus.create_batch("payments", [DEBIT] * 4)

    def work() -> None:
        with running(dsn, handling(do_nothing)):
            bus.wait_batch(batch_id, timeout=20)

    with beside(work):
        lines = done(run("batch", "show", str(batch_id), "--watch", "--json")).splitlines()
    assert json.loads(lines[-1])["status"] == "COMPLETED"
    assert "] 100 %  4 of 4" in done(run("batch", "show", str(batch_id), "--watch"))


def test_a_batch_is_canceled_by_the_one_at_the_keyboard(bus: CommandBus, run: Run) -> None:
    batch_id = str(bus.create_batch("payments", [DEBIT] * 4))
    assert done(run("batch", "cancel", batch_id, "--reason", "twice")) == (
        f"batch {batch_id} canceled\n"
    )
    event = bus.batch_audit(batch_id)[1]
    assert (event.kind, event.operator) == ("BATCH_CANCEL_REQUESTED", getpass.getuser())
    assert event.message == "twice"
    refused = run("batch", "cancel", batch_id)
    assert refused.exit_code == 1 and "cannot be canceled: it is CANCELED" in refused.stderr


def test_the_bar_is_full_only_at_the_end() -> None:
    assert bar(0, 3).startswith("[......")
    assert "#.] 99 %  999,999 of 1,000,000" in bar(999_999, 1_000_000)
    assert bar(3, 3).startswith("[####") and "." not in bar(3, 3).split("]")[0]
