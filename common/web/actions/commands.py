"""Actions on commands that wait or run: cancel, reschedule, cancel all that meet conditions."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from cmdbus.errors import CommandNotFoundError, InvalidOperationError
from cmdbus.priorities import PRIORITIES
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.found_commands import FoundCommand
from cmdbus.producer.progress import Progress
from cmdbus.producer.records import Status
from cmdbus.web.action import LONG_BODY_BYTES, Action, Body
from cmdbus.web.actions.answers import commands, done, field, number, preview, undoing
from cmdbus.web.actions.conditions import conditions_of, leave_out_newer, read_time
from cmdbus.web.actions.named import MAX_MATCHED, Named, carry_out, counted, named_commands
from cmdbus.web.actions.order import Order

_CONDITIONS = ("domain", "type", "key", "since", "until")


def _preview_cancel(bus: CommandBus, body: Body) -> dict[str, Any]:
    named, order = _read(body, ["running"])
    found = _open(bus, named)
    running = sum(command.status == Status.IN_PROGRESS for command in found)
    waiting = len(found) - running
    touches = []
    if waiting:
        touches.append(f"{commands(waiting, 'waits and ends', 'wait and end')} as CANCELED.")
    if running:
        touches.append(
            f"{commands(running, 'is', 'are')} in progress: a handler is not interrupted, but "
            f"nothing that it writes through its context's connection lands."
        )
    touches.append("A reply that was asked for has the reason.")
    fields = []
    if running and not order.has("running"):
        label = "End what is in progress, too" if waiting else "End it although it is in progress"
        fields = [field("running", label, "boolean", waiting == 0)]
    return preview(
        f"Cancel {_title(found, named)}",
        [*touches, *_left(named, found)],
        "Cancel it" if len(named) == 1 else f"Cancel {commands(len(found))}",
        count=len(found),
        fields=fields,
        grave=True,
        state=_state(found, named),
    )


def _cancel(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    named, order = _read(body, ["running"])
    _check_state(bus, order, named)
    running = order.flag("running") if order.has("running") else False

    def cancel(domain: str, command_id: UUID) -> None:
        bus.cancel(domain, command_id, operator=operator, reason=order.reason, running=running)

    return carry_out(named, cancel, "canceled")


_FIELDS = [
    field("now", "As soon as a worker is free", "boolean", False),
    field("run_at", "Not before", "time", hint="Empty: its time stays."),
    field("priority", "Priority", hint="high, normal, low, or 0 (first) to 10. Empty: it stays."),
]
_VALUES = [each["name"] for each in _FIELDS]


def _preview_reschedule(bus: CommandBus, body: Body) -> dict[str, Any]:
    named, order = _read(body, _VALUES)
    found = [command for command in _open(bus, named) if command.status == Status.PENDING]
    if not found:
        raise InvalidOperationError("only a command that waits can be rescheduled")
    fields = [{**each, "value": order.values.get(each["name"], each["value"])} for each in _FIELDS]
    return preview(
        f"Reschedule {_title(found, named)}",
        [
            f"{commands(len(found), 'waits and gets', 'wait and get')} another time, another "
            f"priority, or both. Attempts stay.",
            *_left(named, found),
        ],
        "Reschedule it" if len(named) == 1 else f"Reschedule {commands(len(found))}",
        count=len(found),
        fields=fields,
        undo=None if len(named) > 1 else "Its former time and priority can be given back.",
        state=_state(found, named),
    )


def _reschedule(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    named, order = _read(body, _VALUES)
    changes = _changes(order)
    _check_state(bus, order, named)
    before = bus.find(named) if len(named) == 1 else []

    def reschedule(domain: str, command_id: UUID) -> None:
        bus.reschedule(domain, command_id, **changes, operator=operator, reason=order.reason)

    answer = carry_out(named, reschedule, "rescheduled", undone="Reschedule them again.")
    with Progress("rescheduled") as progress:
        progress.count = int(answer["count"])
        after = bus.find(named) if before else []
    if after:
        [command] = before
        former: dict[str, Any] = {}
        if "priority" in changes:
            former["priority"] = str(command.priority)
        if "run_at" in changes or "delay" in changes:
            former["run_at"] = command.due_at.isoformat()
        target = {"commands": [[command.domain, str(command.command_id)]]}
        undo = undoing("reschedule", "Undo", target, former, state=_terms(after[0]))
        answer |= {"undo": undo, "undone": None}
    return answer


def _terms(command: FoundCommand) -> dict[str, Any]:
    """An undo is not for what another operator has chosen since."""
    return {
        "status": str(command.status),
        "due_at": command.due_at.isoformat(),
        "priority": command.priority,
    }


def _changes(order: Order) -> dict[str, Any]:
    """Arguments of `bus.reschedule`."""
    changes: dict[str, Any] = {}
    run_at = order.text("run_at")
    if run_at is not None:
        changes["run_at"] = read_time("run_at", run_at)
    if order.has("now") and order.flag("now"):
        if changes:
            raise ValueError("choose either a time or as soon as a worker is free")
        changes["delay"] = 0
    priority = order.values.get("priority")
    if isinstance(priority, str) and priority.strip() in PRIORITIES:
        changes["priority"] = priority.strip()
    elif (value := order.whole("priority", 0)) is not None:
        changes["priority"] = value
    if not changes:
        raise ValueError("nothing is to be changed: give a time, a priority, or both")
    return changes


def _preview_cancel_all(bus: CommandBus, body: Body) -> dict[str, Any]:
    domain, conditions = _match(Order(body, ["match"]))
    newest = bus.search(domain, Status.PENDING, limit=1, **conditions).commands
    if newest:
        until = newest[0].created_at + timedelta(microseconds=1)
        conditions["until"] = min(until, conditions.get("until") or until)
    count = bus.count_waiting(domain, **conditions) if newest else 0
    if not count:
        raise InvalidOperationError(f"no command {_which(domain, conditions)} waits")
    touches = [
        f"These are all that wait. {_ends(count)} as CANCELED; a reply that was asked for has the "
        f"reason.",
        "What is in progress, and what is sent meanwhile, is left out.",
    ]
    if count > MAX_MATCHED:
        touches.append(f"It ends after {number(MAX_MATCHED)}; then it can be repeated.")
    return preview(
        f"Cancel all {commands(count)} {_which(domain, {**conditions, 'until': None})}",
        touches,
        f"Cancel {commands(count)}",
        count=count,
        grave=True,
        state={"until": conditions["until"].isoformat()},
    )


def _cancel_all(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["match"])
    domain, conditions = _match(order)
    leave_out_newer(conditions, order.state("until"))
    remark: dict[str, Any] = {"operator": operator, "reason": order.reason}
    count = bus.cancel_all(domain, **conditions, **remark, limit=MAX_MATCHED)
    sentence = counted(count, "canceled")
    if count == MAX_MATCHED and (left := bus.count_waiting(domain, **conditions)):
        sentence += f"; {number(left)} of them still wait: repeat it"
    return done(sentence, count=count)


def _match(order: Order) -> tuple[str, dict[str, Any]]:
    """The domain, and further arguments of `bus.cancel_all`, which checks them."""
    conditions = conditions_of(order, "match", _CONDITIONS)
    domain = conditions.pop("domain", None)
    if domain is None:
        raise ValueError("all that match are canceled in one domain: name it")
    return domain, conditions


def _which(domain: str, conditions: Mapping[str, Any]) -> str:
    texts = {"type": "of type {}", "key": "of key {}", "since": "sent since {}"}
    texts["until"] = "sent before {}"
    given = (texts[name].format(conditions[name]) for name in texts if conditions.get(name))
    return " ".join((f"of {domain}", *given))


def _ends(count: int) -> str:
    return "It ends" if count == 1 else "They end"


def _read(body: Body, values: Sequence[str]) -> tuple[list[Named], Order]:
    order = Order(body, ["commands"], values)
    named = named_commands(order)
    if named is None:
        raise ValueError("target must be the commands, each with its domain and its id")
    return named, order


def _open(bus: CommandBus, named: Sequence[Named]) -> list[FoundCommand]:
    """Those that wait or run."""
    found = bus.find(named)
    if not found and len(named) == 1:
        raise CommandNotFoundError(*named[0])
    kept = [each for each in found if each.status in (Status.PENDING, Status.IN_PROGRESS)]
    if not kept:
        raise InvalidOperationError(
            f"{found[0].command_id} is {found[0].status}"
            if len(found) == 1
            else f"none of these {len(named)} commands waits or runs any longer"
        )
    return kept


def _title(found: Sequence[FoundCommand], named: Sequence[Named]) -> str:
    if len(named) == 1:
        return f"{found[0].domain}/{found[0].type} {found[0].command_id}"
    return commands(len(found))


def _left(named: Sequence[Named], found: Sequence[FoundCommand]) -> list[str]:
    left = len(named) - len(found)
    return [f"{commands(left, 'stays as it is', 'stay as they are')}."] if left else []


def _state(found: Sequence[FoundCommand], named: Sequence[Named]) -> dict[str, Any] | None:
    """What must still hold of a single one."""
    return {"status": str(found[0].status)} if len(named) == 1 else None


def _check_state(bus: CommandBus, order: Order, named: Sequence[Named]) -> None:
    if len(named) == 1:
        for command in bus.find(named):
            order.check_state(f"command {command.command_id}", _terms(command))


ACTIONS = [
    Action("cancel", _preview_cancel, _cancel, body_bytes=LONG_BODY_BYTES),
    Action("reschedule", _preview_reschedule, _reschedule, body_bytes=LONG_BODY_BYTES),
    Action("cancel_all", _preview_cancel_all, _cancel_all),
]
