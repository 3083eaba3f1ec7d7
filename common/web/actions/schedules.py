"""Actions on schedules: pause, resume, run, add and remove."""

import json
from typing import Any

from cmdbus.data import Undecodable
from cmdbus.errors import InvalidOperationError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.schedules import ScheduleRecord
from cmdbus.schedules import MISSED, times_text
from cmdbus.web.action import LONG_BODY_BYTES, Action, Body
from cmdbus.web.actions.answers import FOR_GOOD, done, field, preview, undoing
from cmdbus.web.actions.order import Order

#: Characters of data that a page keeps for an undo, at most: a body holds them as JSON in JSON.
_MAX_KEPT = LONG_BODY_BYTES // 16
_TERMS = (
    *("domain", "type", "cron", "every", "timezone", "missed", "jitter"),
    *("priority", "max_attempts", "key", "data"),
)


def _find(bus: CommandBus, name: str) -> ScheduleRecord | None:
    return next((each for each in bus.schedules.list() if each.name == name), None)


def _read(bus: CommandBus, name: str) -> ScheduleRecord:
    record = _find(bus, name)
    if record is None:
        bus.schedules.next(name)  # It raises the sentence about a name that no schedule has.
        raise InvalidOperationError(f"there is no schedule {name!r} any longer")
    return record


def _what(record: ScheduleRecord) -> str:
    return f"It sends {record.domain}/{record.type}, {record.times}."


def _next(record: ScheduleRecord) -> str:
    if record.next_tick is None:
        return "It has no next tick."
    return f"Its next tick is at {record.next_tick.isoformat(sep=' ', timespec='seconds')}."


def _preview_pause(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = _read(bus, Order(body, ["name"]).name("name"))
    if record.paused:
        raise InvalidOperationError(f"the schedule {record.name} is paused already")
    return preview(
        f"Pause the schedule {record.name}",
        [_what(record), _next(record), "Until it is resumed it misses its ticks."],
        "Pause it",
        undo="Resume it undoes it; ticks that it misses meanwhile are not made up for.",
    )


def _preview_resume(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = _read(bus, Order(body, ["name"]).name("name"))
    if not record.paused:
        raise InvalidOperationError(f"the schedule {record.name} is not paused")
    ticks = bus.schedules.next(record.name)
    at = f"at {ticks[0].isoformat(sep=' ', timespec='seconds')}" if ticks else "never"
    return preview(
        f"Resume the schedule {record.name}",
        [_what(record), f"Its next tick is {at}."],
        "Resume it",
        undo="Pause it undoes it.",
    )


def _set_paused(bus: CommandBus, body: Body, operator: str, paused: bool) -> dict[str, Any]:
    order = Order(body, ["name"])
    record = _read(bus, order.name("name"))
    if record.paused is paused:
        state = "is paused already" if paused else "is not paused"
        raise InvalidOperationError(f"the schedule {record.name} {state}")
    change = bus.schedules.pause if paused else bus.schedules.resume
    change(record.name, operator=operator, reason=order.reason)
    back, label = ("resume", "Resume it") if paused else ("pause", "Pause it again")
    return done(
        f"the schedule {record.name} is {'paused' if paused else 'resumed'}",
        undo=undoing(f"{back}_schedule", label, {"name": record.name}),
    )


def _pause(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    return _set_paused(bus, body, operator, True)


def _resume(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    return _set_paused(bus, body, operator, False)


def _preview_run(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = _read(bus, Order(body, ["name"]).name("name"))
    touches = [
        f"One command {record.domain}/{record.type} is sent now, besides its ticks, which stay."
    ]
    if not record.handled:
        touches.append("No living node runs this type: the command waits for one.")
    return preview(
        f"Run the schedule {record.name} now",
        touches,
        "Send it now",
        count=1,
        undo="The command can be canceled while it waits.",
    )


def _run(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    record = _read(bus, order.name("name"))
    command_id = bus.schedules.run(record.name, operator=operator, reason=order.reason)
    target = {"commands": [[record.domain, str(command_id)]]}
    answer = done(
        f"command {command_id} of {record.domain}/{record.type} is sent",
        count=1,
        undo=undoing("cancel", "Cancel it while it waits", target),
    )
    return {**answer, "link": f"#/command/{record.domain}/{command_id}"}


def _preview_remove(bus: CommandBus, body: Body) -> dict[str, Any]:
    record = _read(bus, Order(body, ["name"]).name("name"))
    touches = [_what(record), _next(record)]
    if record.added is None and record.handled:
        raise InvalidOperationError(
            f"the schedule {record.name} is declared by an app, and a living node runs its type: "
            f"pause it, or take it out of the app"
        )
    if record.added is None:
        touches.append("It is back when an app that declares it starts again.")
    elif record.declared_by:
        touches.append(f"What {record.declared_by[0]} declares of this name holds again.")
    else:
        touches.append("Nothing is sent by it any longer.")
    return preview(
        f"Remove the schedule {record.name}",
        touches,
        "Remove it",
        undo=None if record.added is None else "It can be added again as it is.",
        grave=True,
        state=_state(record),
    )


def _state(record: ScheduleRecord) -> dict[str, Any]:
    return {"type": f"{record.domain}/{record.type}", "times": record.times}


def _remove(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"])
    record = _read(bus, order.name("name"))
    order.check_state(f"the schedule {record.name}", _state(record))
    undo = _adding(bus, record) if record.added is not None else None
    bus.schedules.remove(record.name, operator=operator, reason=order.reason)
    undone = (
        "It is back when an app that declares it starts again."
        if record.added is None
        else "Its data is too large to be kept for an undo."
    )
    return done(f"the schedule {record.name} is removed", undo=undo, undone=undone)


def _adding(bus: CommandBus, record: ScheduleRecord) -> dict[str, Any] | None:
    """What adds the schedule again, with the data of its commands; None if that is too large."""
    data = bus.schedules.data(record.name)
    text = None if isinstance(data, Undecodable) else json.dumps(data, ensure_ascii=False)
    if text is None or len(text) > _MAX_KEPT:
        return None
    values = {term: getattr(record, term) for term in _TERMS if term != "data"}
    if record.cron is None:
        del values["timezone"]
    return undoing("add_schedule", "Add it again", {"name": record.name}, {**values, "data": text})


def _preview_add(bus: CommandBus, body: Body) -> dict[str, Any]:
    order = Order(body, ["name"], (*_TERMS, "name"))
    name = order.optional_name("name")
    present = _find(bus, name) if name else None
    touches = ["From now on a command is sent at each of its ticks."]
    if present is not None:
        how = "is replaced" if present.added else "is overridden until this one is removed"
        touches.append(f"There is a schedule {name}, which {how}: {_what(present)}")
    fields = [
        *([] if name else [field("name", "Name", required=True)]),
        field("domain", "Domain", required=True, value=present and present.domain),
        field("type", "Type", required=True, value=present and present.type),
        field("cron", "Cron line, like 0 3 * * *", value=present and present.cron),
        field("every", "Or an interval, like 15m, 2h, 1d", value=_every(present)),
        field("timezone", "Time zone of the cron line", value=present and present.timezone),
        field(
            *("missed", "For ticks that were missed", "choice", present and present.missed),
            choices=MISSED,
        ),
        field("key", "Key of its commands", value=present and present.key),
        field("data", "Data of its commands (JSON)", "json", "null"),
    ]
    return preview(
        f"Add the schedule {name}" if name else "Add a schedule",
        touches,
        "Add it",
        fields=fields,
        undo="The schedule of before can be put back." if present else "Remove it undoes it.",
        state=None if present is None else _state(present),
    )


def _every(record: ScheduleRecord | None) -> str | None:
    if record is None or record.every is None:
        return None
    return times_text(None, record.every, record.timezone).removeprefix("every ")


def _add(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["name"], (*_TERMS, "name"))
    name = order.optional_name("name") or order.text("name")
    if name is None:
        raise ValueError("name must be that of the schedule, and it is empty")
    present = _find(bus, name)
    if present is not None:
        order.check_state(f"the schedule {name}", _state(present))
    cron, priority = order.text("cron"), order.values.get("priority")
    given: dict[str, Any] = {
        "every": order.values.get("every") or None,
        "timezone": order.text("timezone") if cron else None,
        "missed": order.choice("missed", *MISSED) or "one",
        "jitter": order.seconds("jitter") or 0,
        "data": order.json("data"),
        "priority": "normal" if priority in (None, "") else priority,
        "max_attempts": order.whole("max_attempts"),
        "key": order.text("key"),
    }
    back = _adding(bus, present) if present is not None and present.added else None
    if back is None:
        back = undoing("remove_schedule", "Remove it again", {"name": name})
    domain, type_ = order.text("domain") or "", order.text("type") or ""
    bus.schedules.add(name, domain, type_, cron, **given, operator=operator, reason=order.reason)
    return done(f"the schedule {name} is added", undo=back, undone=FOR_GOOD)


ACTIONS = [
    Action("add_schedule", _preview_add, _add, LONG_BODY_BYTES),
    Action("pause_schedule", _preview_pause, _pause),
    Action("remove_schedule", _preview_remove, _remove),
    Action("resume_schedule", _preview_resume, _resume),
    Action("run_schedule", _preview_run, _run),
]
