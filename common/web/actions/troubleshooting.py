"""Actions on commands that wait for an operator, by their names or by conditions: retry, cancel,
complete."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from cmdbus.counting import count_of
from cmdbus.errors import CommandNotFoundError, InvalidOperationError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import CommandRecord, Status
from cmdbus.web.action import LONG_BODY_BYTES, Action, Body
from cmdbus.web.actions.answers import FOR_GOOD, commands, done, field, number, preview
from cmdbus.web.actions.conditions import conditions_of, leave_out_newer
from cmdbus.web.actions.named import MAX_MATCHED, carry_out, counted, named_commands
from cmdbus.web.actions.order import Order

_TARGETS = ("commands", "group", "match")
_CONDITIONS = ("domain", "type", "error_code", "key", "since", "until")
_GROUP = ("domain", "type", "error_code")
_MAX_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Verb:
    #: Of `bus.troubleshooting`.
    method: str
    #: Sentences about one command, and about many.
    one: str
    many: str
    participle: str
    grave: bool
    undone: str = FOR_GOOD


_RETRY = Verb(
    "retry",
    "It waits for a worker again, as if it had never been tried.",
    "They wait for a worker again, as if they had never been tried.",
    "retried",
    grave=False,
    undone="What has not started can be canceled.",
)
_CANCEL = Verb(
    "cancel",
    "It ends as CANCELED; its reply, if one was asked for, has the reason.",
    "They end as CANCELED; their replies, where some were asked for, have the reason.",
    "canceled",
    grave=True,
)
_COMPLETE = Verb(
    "complete",
    "It ends as COMPLETED without being run, because its work was done by other means; its reply,"
    " if one was asked for, says SUCCESS with the result.",
    "They end as COMPLETED without being run, because their work was done by other means; their"
    " replies, where some were asked for, say SUCCESS with the result.",
    "completed",
    grave=True,
)


def _preview(bus: CommandBus, body: Body, verb: Verb) -> dict[str, Any]:
    order = _order(body, verb)
    fields = []
    if verb is _COMPLETE:
        hint = "JSON, sent with the reply. Nothing is null."
        fields = [field("result", "Result", "json", hint=hint)]
    named = named_commands(order)
    if named is None:
        return _preview_all(bus, order, verb, fields)
    if len(named) > 1:
        _resolution(order, verb, single=False)
        return preview(
            f"{verb.method.capitalize()} {commands(len(named))}",
            [verb.many, "Those that another operator moves meanwhile stay as they are."],
            f"{verb.method.capitalize()} them",
            count=len(named),
            fields=fields,
            grave=verb.grave,
        )
    record = _found(bus, *named[0], verb)
    resolution = _resolution(order, verb, single=True)
    touches = [f"{_failure(record)} {verb.one}"]
    if "data" in resolution:
        touches.append("It has the edited data from then on; the audit trail keeps both.")
    if record.checkpoint is not None and verb is _RETRY:
        touches.append("It keeps its checkpoint, from which its handler may go on.")
    return preview(
        f"{verb.method.capitalize()} {record.domain}/{record.type} {record.command_id}",
        touches,
        f"{verb.method.capitalize()} it",
        count=1,
        fields=fields,
        grave=verb.grave,
        state=_state(record),
    )


def _preview_all(
    bus: CommandBus, order: Order, verb: Verb, fields: list[dict[str, Any]]
) -> dict[str, Any]:
    conditions = _conditions(order)
    _resolution(order, verb, single=False)
    newest = bus.troubleshooting.page(**conditions, limit=1, with_data=False).commands
    count = bus.troubleshooting.count(**conditions)
    if not newest:
        raise InvalidOperationError(
            f"no command waits for an operator {_which(conditions)}".strip()
        )
    until = newest[0].failed_at + timedelta(microseconds=1)
    which = _which(conditions) or "of all domains and types"
    touches = [
        f"These are all that wait for an operator {which}. {verb.many}",
        "Those that come meanwhile are left out.",
    ]
    if count > MAX_MATCHED:
        touches.append(f"The {number(MAX_MATCHED)} oldest are first; then it can be repeated.")
    return preview(
        f"{verb.method.capitalize()} all {commands(count)} {which}",
        touches,
        f"{verb.method.capitalize()} {commands(count)}",
        count=count,
        fields=fields,
        grave=True,
        state={"until": until.isoformat()},
    )


def _perform(bus: CommandBus, body: Body, operator: str, verb: Verb) -> dict[str, Any]:
    order = _order(body, verb)
    named = named_commands(order)
    remark = {"operator": operator, "reason": order.reason}
    if named is None:
        conditions = _conditions(order)
        leave_out_newer(conditions, order.state("until"))
        resolution = _resolution(order, verb, single=False)
        resolve_all = getattr(bus.troubleshooting, f"{verb.method}_all")
        count = resolve_all(**conditions, **remark, **resolution, limit=MAX_MATCHED)
        sentence = counted(count, verb.participle)
        if count == MAX_MATCHED and (left := bus.troubleshooting.count(**conditions)):
            sentence += f"; {number(left)} of them still wait: repeat it"
        return done(sentence, count=count, undone=verb.undone)
    resolution = _resolution(order, verb, single=len(named) == 1)
    if len(named) == 1 and body.get("state") is not None:
        record = _found(bus, *named[0], verb)
        order.check_state(f"command {record.command_id}", _state(record))
    resolve = getattr(bus.troubleshooting, verb.method)

    def change(domain: str, command_id: UUID) -> None:
        resolve(domain, command_id, **remark, **resolution)

    return carry_out(named, change, verb.participle, undone=verb.undone)


def _order(body: Body, verb: Verb) -> Order:
    values = {_RETRY: ["data"], _COMPLETE: ["result"]}.get(verb, [])
    order = Order(body, _TARGETS, values)
    if len(order.target) != 1:
        raise ValueError("target must be one of commands, group and match")
    return order


def _conditions(order: Order) -> dict[str, Any]:
    """The arguments of `bus.troubleshooting`."""
    if "match" in order.target:
        return conditions_of(order, "match", _CONDITIONS)
    conditions = conditions_of(order, "group", _GROUP)
    if len(conditions) < len(_GROUP):
        raise ValueError(
            "a group has a domain, a type and an error code: commands without an error code are "
            "resolved one by one"
        )
    return conditions


def _resolution(order: Order, verb: Verb, *, single: bool) -> dict[str, Any]:
    """Arguments of the method that are for this verb. JSON is text, which Python reads: a browser
    would change long numbers."""
    if verb is _COMPLETE:
        return {"result": order.json("result")}
    if verb is _RETRY and order.text("data") is not None:
        if not single:
            raise ValueError("other data is for one command")
        return {"data": order.json("data")}
    return {}


def _found(bus: CommandBus, domain: str, command_id: UUID, verb: Verb) -> CommandRecord:
    record = bus.get(domain, command_id)
    if record is None:
        raise CommandNotFoundError(domain, command_id)
    if record.status is not Status.IN_TROUBLESHOOTING_QUEUE:
        raise InvalidOperationError(
            f"command {command_id} of domain {domain!r} cannot be {verb.participle}: it is "
            f"{record.status}, and not in the troubleshooting queue"
        )
    return record


def _state(record: CommandRecord) -> dict[str, Any]:
    """Changes whenever it has been retried meanwhile."""
    started = record.started_at
    return {"latest_attempt": None if started is None else started.isoformat()}


def _failure(record: CommandRecord) -> str:
    message = (record.error_message or "")[:_MAX_MESSAGE]
    error = ": ".join(text for text in (record.error_code, message) if text)
    return f"It failed after {count_of(record.attempts, 'attempt')} with {error or 'no error'}."


def _which(conditions: Mapping[str, Any]) -> str:
    names = {"domain": "of {}", "type": "of type {}", "error_code": "with {}", "key": "of key {}"}
    names |= {"since": "since {}", "until": "until {}"}
    return " ".join(names[name].format(conditions[name]) for name in names if name in conditions)


def _action(name: str, verb: Verb) -> Action:
    return Action(
        name,
        lambda bus, body: _preview(bus, body, verb),
        lambda bus, body, operator: _perform(bus, body, operator, verb),
        body_bytes=LONG_BODY_BYTES,
    )


ACTIONS = [
    _action("retry", _RETRY),
    _action("cancel_trouble", _CANCEL),
    _action("complete", _COMPLETE),
]
