"""The commands of one correlation id as a tree, with their process and batches. Pure.

Only what is on record makes a parent: a reply names its command, a process its steps, and a command
its batch. All others stand below the command or process whose id is the correlation id, by time.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from cmdbus.producer.process_records import ProcessRecord, ProcessStep
from cmdbus.producer.records import BatchRecord

REPLY = "Reply"
_FIELDS = ("domain", "command_id", "type", "status", "created_at", "finished_at", "attempts")
_FIELDS_OF_ERROR = ("error_code",)
Node = dict[str, Any]


def tree(
    correlation_id: UUID,
    commands: Iterable[Any],
    *,
    process: ProcessRecord | None = None,
    steps: Sequence[ProcessStep] = (),
    batches: Iterable[BatchRecord] = (),
    answers: Mapping[UUID, object] | None = None,
) -> list[Node]:
    """`commands` are records of any kind that name their fields alike; `answers`: by the id of a
    reply, the id of the command that it answers."""
    nodes: dict[tuple[str, UUID], Node] = {}
    for command in commands:
        nodes[command.domain, command.command_id] = _command(command)
    batch_nodes = {batch.batch_id: _batch(batch) for batch in batches}
    process_node = None if process is None else _process(process)
    below: dict[tuple[str, UUID], Node] = {}
    for step in steps:
        made = _step(step)
        if process_node is not None:
            process_node["children"].append(made)
        if batch := batch_nodes.pop(step.command_id, None):
            made["children"].append(batch)
        below[step.domain, step.command_id] = made
    by_id = {id_: node for (_, id_), node in nodes.items() if node["type"] != REPLY}
    all_batches = {**batch_nodes, **_batches_of(below.values())}
    root = process_node or by_id.get(correlation_id)
    top: list[Node] = [] if root is None else [root]
    top += [batch for batch in batch_nodes.values() if root is None]
    if root is not None:
        root["children"] += batch_nodes.values()
    for key, node in nodes.items():
        if node is root:
            continue
        parent = below.get(key) or all_batches.get(node["batch_id"])
        if node["type"] == REPLY:
            parent = by_id.get(_id((answers or {}).get(key[1]))) or parent
        children = (parent or root or {"children": top})["children"]
        children.append(node)
    for node in top:
        _sort(node)
    return sorted(top, key=_time)


def _batches_of(steps: Iterable[Node]) -> dict[UUID, Node]:
    return {child["batch_id"]: child for step in steps for child in step["children"]}


def _id(value: object) -> Any:
    """Data of a reply that another program wrote may name anything."""
    try:
        return value if isinstance(value, UUID) else UUID(str(value))
    except ValueError:
        return None


def _sort(node: Node) -> None:
    """Steps of a process keep their order, which is that of their times."""
    node["children"].sort(key=_time)
    for child in node["children"]:
        _sort(child)


def _time(node: Node) -> datetime:
    time: datetime = node["created_at"]
    return time


def _command(command: Any) -> Node:
    fields = {name: getattr(command, name) for name in (*_FIELDS, *_FIELDS_OF_ERROR, "batch_id")}
    return {"kind": "command", **fields, "children": []}


def _batch(batch: BatchRecord) -> Node:
    return {
        "kind": "batch",
        "domain": batch.domain,
        "batch_id": batch.batch_id,
        "name": batch.name,
        "status": batch.status,
        "total": batch.total,
        "remaining": batch.remaining,
        "created_at": batch.created_at,
        "children": [],
    }


def _process(process: ProcessRecord) -> Node:
    return {
        "kind": "process",
        "domain": process.domain,
        "process_id": process.process_id,
        "type": process.type,
        "status": process.status,
        "created_at": process.created_at,
        "children": [],
    }


def _step(step: ProcessStep) -> Node:
    return {
        "kind": "step",
        "step": step.step,
        "undoes": step.undoes,
        "domain": step.domain,
        "type": step.type,
        "status": step.outcome or step.command_status,
        "created_at": step.sent_at,
        "children": [],
    }
