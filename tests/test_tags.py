"""Types with tags run only where all of these are, and wait visibly where no node has them."""

import json
import logging
import time

import psycopg
import pytest
from cli import done, here
from eventually import eventually
from fleet import Fleet, supervised, write_app
from handlers import await_rest, connect, do_nothing, running
from preflights import OK, WARNING, checks
from queries import rows, scalar
from roles import role
from test_declaring import as_app
from test_floors import ROWS_READ

from cmdbus import Command, CommandBus, Context, HandlerRegistry, SendRequest
from cmdbus.database.executor import Executor
from cmdbus.readiness import Finding
from cmdbus.worker import Worker
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.declaring import declare
from cmdbus.worker.steward.unhandled import Unhandled

RENDER = SendRequest("payments", "Render")
DEBIT = SendRequest("payments", "Debit")
AGE = "UPDATE cmdbus.ready SET created_at = created_at - interval '1 hour'"
NO_GPU = "no living node has the tag gpu, which {} needs"
#: The types that nodes without tags have run. A node's row has the incarnation of its steward.
RAN_WITHOUT_TAG = """
    SELECT DISTINCT f.type FROM cmdbus.finished f JOIN cmdbus.incarnation i ON i.id = f.claimer
    WHERE i.node NOT IN (SELECT s.node FROM cmdbus.incarnation s
                         JOIN cmdbus.node n ON n.id = s.id AND n.tags = '{gpu}')"""
APP = """
from fleet_app import registry as registry
@registry.handler("shop", "Render", tags={"gpu"})
def render(command, context):
    context.connection.execute("INSERT INTO effect VALUES (%s)", (command.command_id,))
"""


def tagged(ran: list[str] | None = None) -> HandlerRegistry:
    """Types of payments without tags, with one and with two; `ran` gets the type of each run."""

    def run(command: Command, context: Context) -> None:
        if ran is not None:
            ran.append(command.type)

    registry = HandlerRegistry()
    registry.register("payments", "Debit", run)
    registry.register("payments", "Render", run, tags={"gpu"})
    registry.register("film", "Cut", run, tags=["gpu", "eu"])
    return registry


def test_a_type_is_claimed_only_by_workers_that_have_all_its_tags(
    dsn: str, bus: CommandBus
) -> None:
    plain, gpu, both = list[str](), list[str](), list[str]()
    with (
        running(dsn, tagged(plain)),
        running(dsn, tagged(gpu), tags=["gpu"]),
        running(dsn, tagged(both), tags={"eu", "gpu", "us"}),
    ):
        ids = bus.send_many([RENDER, DEBIT, SendRequest("film", "Cut")] * 40)
        for request, id_ in zip([RENDER, DEBIT, SendRequest("film", "Cut")] * 40, ids, strict=True):
            bus.wait(request.domain, id_)
    assert set(plain) <= {"Debit"} and set(gpu) <= {"Debit", "Render"}
    assert both.count("Cut") == 40 and (gpu + both).count("Render") == 40


def test_a_type_whose_tags_no_node_has_waits_and_is_visible_until_one_comes(
    dsn: str, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    with running(dsn, tagged()) as worker, connect(dsn) as connection:
        eventually(lambda: rows(dsn, "SELECT FROM cmdbus.node"))
        [id_, _] = bus.send_many([RENDER, SendRequest("film", "Cut")])
        connection.execute(AGE)
        assert bus.explain("payments", id_) == f"It waits: {NO_GPU.format('payments/Render')}."
        found = {record.domain: record for record in bus.domains()}
        assert found["payments"].missing_tags == {"Render": ["gpu"]}
        assert found["film"].missing_tags == {"Cut": ["eu", "gpu"]}
        assert found["payments"].unhandled == ["Render"]
        remarks = done(here("status", CMDBUS_DSN=dsn))
        assert "payments/Render waits: no living node has the tag gpu, which it needs" in remarks
        assert "film/Cut waits: no living node has the tags eu and gpu" in remarks
        shown = json.loads(done(here("status", "film", "--json", CMDBUS_DSN=dsn)))
        assert shown["domains"][0]["missing_tags"] == {"Cut": ["eu", "gpu"]}
        assert rows(dsn, "SELECT * FROM cmdbus.count_unreachable()") == [
            ("film", "Cut", "tags", 1),
            ("payments", "Render", "tags", 1),
        ]
        statements = ClaimStatements("cmdbus", 30)
        statements.types = ["payments Debit"]
        with caplog.at_level(logging.WARNING):
            Unhandled(statements, ["payments", "film"]).report(connection)
        assert [message.partition(": ")[0] for message in caplog.messages] == [
            "1 command of film/Cut waits, and no living node has the tags eu and gpu, which that "
            "type needs",
            "1 command of payments/Render waits, and no living node has the tag gpu, which that "
            "type needs",
        ]
        assert "start a fleet with --tag eu --tag gpu, or cancel it" in caplog.messages[0]
        await_rest(worker)
        with running(dsn, tagged(), tags=["gpu"]):
            assert bus.wait("payments", id_).status == "COMPLETED"
            # Its node's row is written when it first renews or waits.
            eventually(lambda: bus.domains("film")[0].missing_tags == {"Cut": ["eu"]})
    with role(dsn, "monitor") as monitor:
        assert bus.domains("film", connection=monitor)[0].missing_tags


def test_tags_that_are_declared_no_longer_are_needed_no_longer(
    connection: psycopg.Connection,
) -> None:
    def declared(registry: HandlerRegistry) -> list[tuple[str, list[str]]]:
        declare(connection, Executor("cmdbus"), "shop", registry.declarations())
        query = "SELECT name, tags FROM cmdbus.type_tags ORDER BY name"
        return connection.execute(query).fetchall()

    assert declared(tagged()) == [("film Cut", ["eu", "gpu"]), ("payments Render", ["gpu"])]
    changed = HandlerRegistry()
    changed.register("film", "Cut", do_nothing, tags=("gpu",))
    assert declared(changed) == [("film Cut", ["gpu"])]
    assert scalar(connection, "SELECT cmdbus.missing_tags('film', 'Cut')") == ["gpu"]
    assert scalar(connection, "SELECT cmdbus.missing_tags('payments', 'Render')") is None


def test_many_that_wait_for_a_tag_cost_the_claims_of_others_nothing(
    dsn: str, bus: CommandBus
) -> None:
    """They are in front of them, in their queue: each walk over all of them is one of few."""
    waiting, others = 20_000, 60
    bus.send_many([RENDER] * waiting)
    began = time.monotonic()
    with running(dsn, tagged()) as worker:
        for _ in range(others):
            bus.wait("payments", bus.send("payments", "Debit"), 30)
        await_rest(worker)
    walks = 10 + 10 * (time.monotonic() - began)
    with connect(dsn) as watcher:
        eventually(lambda: 0 < scalar(watcher, ROWS_READ.format("")) < walks * waiting)
    assert bus.snapshot("payments")["depth"] == waiting


def test_the_check_says_what_a_fleet_does_not_run_and_what_no_living_node_does(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = as_app(monkeypatch, tagged())
    check = checks(dsn, app=app)["tags"]
    assert (check.finding, check.fix) == (WARNING, "start a fleet that has them, with --tag")
    assert check.sentence == (
        "no living node has the tags of film/Cut, payments/Render: film/Cut needs the tags eu and "
        "gpu, payments/Render needs the tag gpu"
    )
    with running(dsn, tagged(), tags=("eu", "gpu")):
        eventually(lambda: rows(dsn, "SELECT FROM cmdbus.node"))
        check = checks(dsn, app=app, tags=("eu",))["tags"]
        assert (check.finding, check.sentence) == (
            OK,
            "this fleet does not run all types: payments/Render needs the tag gpu, film/Cut needs "
            "the tag gpu",
        )
    assert checks(dsn, app=app, domains=("film",))["app"].finding is Finding.FATAL


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ("gpu", "tags of payments/Render must be a set or list of names, like {'gpu'}, not 'gpu'"),
        ({""}, "each of the tags of payments/Render must be a letter and up to 99 more"),
        (["a b"], "each of the tags of payments/Render must be a letter and up to 99 more"),
    ],
)
def test_what_is_no_tag_is_refused(tags: object, sentence: str) -> None:
    with pytest.raises(ValueError) as refused:
        HandlerRegistry().register("payments", "Render", do_nothing, tags=tags)  # type: ignore[arg-type]
    assert str(refused.value).startswith(sentence)


def test_a_worker_that_could_run_nothing_is_refused(dsn: str) -> None:
    with pytest.raises(ValueError) as refused:
        Worker(dsn, tagged(), domains=["film"], tags=["eu"])
    assert str(refused.value) == (
        "no type is left that it can run: film/Cut needs the tag gpu, which it does not have; "
        "give it tags with --tag, or Worker(tags=...)"
    )


@pytest.mark.fleet(started=False, procs=1, threads=2, poll_interval=600)
def test_a_fleet_runs_tagged_types_only_with_its_option(fleet: Fleet) -> None:
    write_app(fleet.place, APP)
    fleet.start()
    options = {**fleet.options, "name": "b", "tag": "gpu"}
    with supervised(fleet.dsn, fleet.place, alone=False, **options) as gpu:
        fleet.wait_until_ready()
        gpu.wait_until_ready()
        assert "tags gpu" in done(here("ps", "--runtime-dir", str(gpu.directory), "--name", "b"))
        fleet.await_completed(fleet.send("Render", 30) + fleet.send("Noop", 30))
        assert ("Render",) not in fleet.query(RAN_WITHOUT_TAG)
        assert fleet.query("SELECT tags FROM cmdbus.node WHERE tags IS NOT NULL") == [(["gpu"],)]
        gpu.stop()
    [waiting] = fleet.send("Render")
    fleet.await_completed(fleet.send("Noop"))
    with CommandBus(fleet.dsn) as bus:
        assert bus.explain("shop", waiting) == f"It waits: {NO_GPU.format('shop/Render')}."
