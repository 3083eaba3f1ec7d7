"""The commands of one correlation id as a tree. Pure."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cmdbus.producer.process_records import ProcessRecord, ProcessStatus, ProcessStep
from cmdbus.producer.records import BatchRecord, BatchStatus, CommandRecord, Status
from cmdbus.web.views.command_tree import tree

BEGIN = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROOT = UUID(int=1)


def made(kind: Any, **given: Any) -> Any:
    return kind(**{**{each.name: None for each in fields(kind)}, **given})


def command(number: int, type_: str, **given: Any) -> Any:
    return made(
        CommandRecord,
        domain="shop",
        command_id=UUID(int=number),
        type=type_,
        status=Status.COMPLETED,
        correlation_id=ROOT,
        created_at=BEGIN + timedelta(seconds=number),
        **given,
    )


def process() -> Any:
    given = {"process_id": ROOT, "domain": "shop", "type": "Order", "created_at": BEGIN}
    return made(ProcessRecord, status=ProcessStatus.COMPLETED, **given)


def step(number: int, name: str, **given: Any) -> Any:
    given = {"domain": "shop", "type": name, "command_id": UUID(int=number), **given}
    sent_at = BEGIN + timedelta(seconds=number)
    return made(ProcessStep, number=number, step=name, sent_at=sent_at, outcome="SUCCESS", **given)


def batch(number: int) -> Any:
    given = {"batch_id": UUID(int=number), "domain": "shop", "name": "all", "total": 2}
    return made(BatchRecord, status=BatchStatus.COMPLETED, created_at=BEGIN, remaining=0, **given)


def outline(nodes: list[dict[str, Any]]) -> list[Any]:
    """Types of commands and names of the rest, each with those below it."""
    found = []
    for node in nodes:
        name = node.get("name") or node.get("step") or node["type"]
        found.append([name, *outline(node["children"])] if node["children"] else name)
    return found


def test_commands_stand_below_the_first_one_by_time() -> None:
    commands = [command(3, "Mail"), command(2, "Charge"), command(1, "Order")]
    assert outline(tree(ROOT, commands)) == [["Order", "Charge", "Mail"]]


def test_a_reply_stands_below_its_command() -> None:
    commands = [command(1, "Order"), command(2, "Charge"), command(3, "Reply"), command(4, "Reply")]
    answers = {UUID(int=3): str(UUID(int=2)), UUID(int=4): "of another program"}
    assert outline(tree(ROOT, commands, answers=answers)) == [
        ["Order", ["Charge", "Reply"], "Reply"]
    ]


def test_replies_that_name_each_other_make_no_circle() -> None:
    commands = [command(3, "Reply"), command(4, "Reply")]
    answers: dict[UUID, object] = {UUID(int=3): UUID(int=4), UUID(int=4): UUID(int=3)}
    assert outline(tree(ROOT, commands, answers=answers)) == ["Reply", "Reply"]


def test_commands_of_a_batch_stand_below_it() -> None:
    commands = [command(n, "Bill", batch_id=UUID(int=9)) for n in (2, 3)]
    assert outline(tree(ROOT, commands, batches=[batch(9)])) == [["all", "Bill", "Bill"]]
    commands.append(command(1, "Order"))
    assert outline(tree(ROOT, commands, batches=[batch(9)])) == [["Order", ["all", "Bill", "Bill"]]]


def test_a_process_has_its_steps_with_their_commands() -> None:
    commands = [
        command(1, "process:start"),
        command(2, "Reserve"),
        command(4, "Bill", batch_id=UUID(int=9)),
        command(5, "Reply"),
        command(6, "Release"),
    ]
    steps = [step(2, "RESERVE"), step(9, "BILL"), step(6, "RESERVE", undoes=1)]
    found = tree(
        ROOT,
        commands,
        process=process(),
        steps=steps,
        batches=[batch(9)],
        answers={UUID(int=5): str(UUID(int=2))},
    )
    assert outline(found) == [
        [
            "Order",
            "process:start",
            ["RESERVE", ["Reserve", "Reply"]],
            ["RESERVE", "Release"],
            ["BILL", ["all", "Bill"]],
        ]
    ]


def test_without_a_common_parent_all_are_listed() -> None:
    """Its history is gone."""
    assert outline(tree(ROOT, [command(3, "Mail"), command(2, "Charge")])) == ["Charge", "Mail"]
    assert tree(ROOT, []) == []
