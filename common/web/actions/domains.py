"""Actions on domains: pause, resume, configure."""

from datetime import timedelta
from typing import Any

from cmdbus.errors import InvalidOperationError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import DomainRecord
from cmdbus.web.action import Action, Body
from cmdbus.web.actions.answers import (
    commands,
    done,
    duration,
    field,
    number,
    preview,
    undoing,
    yes_or_no,
)
from cmdbus.web.actions.order import Order

_LIMITS = {
    "max_depth": "Refuse sends from this depth on (max_depth)",
    "warn_depth": "Senders log a warning from this depth on (warn_depth)",
    "max_waiting_per_key": "Most that may wait with one key (max_waiting_per_key)",
}
_SETTINGS = (*_LIMITS, "keep", "accepting")
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(_LIMITS),
    "keep": timedelta(days=7),
    "accepting": True,
}


def _found(bus: CommandBus, domain: str) -> DomainRecord | None:
    """None: nothing of it is unfinished, and nothing is set."""
    records = bus.domains(domain)
    return records[0] if records else None


def _is_paused(record: DomainRecord | None) -> bool:
    return record is not None and record.paused


def _preview_pause(bus: CommandBus, body: Body) -> dict[str, Any]:
    domain = Order(body, ["domain"]).name("domain")
    record = _found(bus, domain)
    if _is_paused(record):
        raise InvalidOperationError(f"domain {domain} is paused already")
    return preview(
        f"Pause {domain}",
        [
            "Workers claim nothing more of it; sends are accepted.",
            _counts(domain, record, "waits and will not start", "wait and will not start"),
        ],
        f"Pause {domain}",
        count=record.all.depth if record else 0,
        undo=f"Resume {domain} undoes it.",
        state={"paused": False},
    )


def _preview_resume(bus: CommandBus, body: Body) -> dict[str, Any]:
    domain = Order(body, ["domain"]).name("domain")
    record = _found(bus, domain)
    if not _is_paused(record):
        raise InvalidOperationError(f"domain {domain} is not paused")
    return preview(
        f"Resume {domain}",
        [
            "Workers claim its commands again.",
            _counts(domain, record, "waits and may start", "wait and may start"),
        ],
        f"Resume {domain}",
        count=record.all.depth if record else 0,
        undo=f"Pause {domain} undoes it, but what has started by then ends.",
        state={"paused": True},
    )


def _counts(domain: str, record: DomainRecord | None, verb: str, verbs: str) -> str:
    if record is None:
        return f"Nothing waits or runs in {domain}, and nothing is set: is that its name?"
    waiting = record.all
    text = commands(waiting.depth, verb, verbs)
    if waiting.in_progress:
        runs = "runs and ends" if waiting.in_progress == 1 else "run and end"
        text += f"; {number(waiting.in_progress)} {runs} as usual"
    return f"{text}."


def _set_paused(bus: CommandBus, body: Body, operator: str, paused: bool) -> dict[str, Any]:
    order = Order(body, ["domain"])
    domain = order.name("domain")
    if _is_paused(_found(bus, domain)) is paused:
        state = "is paused already" if paused else "is not paused"
        raise InvalidOperationError(f"domain {domain} {state}")
    if order.state("latest_change") is not None:
        order.check_state(f"domain {domain}", _latest_change(bus, domain))
    change = bus.pause if paused else bus.resume
    change(domain, operator=operator, reason=order.reason)
    back, label = ("resume", "Resume") if paused else ("pause", "Pause")
    return done(
        f"{domain} is {'paused' if paused else 'resumed'}",
        undo=undoing(
            *(back, f"{label} {domain}", {"domain": domain}), state=_latest_change(bus, domain)
        ),
    )


def _latest_change(bus: CommandBus, domain: str) -> dict[str, Any]:
    """An undo is of one's own change, and not of a later one that looks the same."""
    latest = [
        f"{each.at.isoformat()} by {each.operator}" for each in bus.domain_audit(domain, latest=1)
    ]
    return {"latest_change": "".join(latest)}


def _pause(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    return _set_paused(bus, body, operator, True)


def _resume(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    return _set_paused(bus, body, operator, False)


def _settings(record: DomainRecord | None) -> dict[str, Any]:
    if record is None:
        return dict(_DEFAULTS)
    return {name: getattr(record, name) for name in _SETTINGS}


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As the page sends them."""
    plain = dict(settings)
    if "keep" in plain:
        plain["keep"] = duration(plain["keep"].total_seconds())
    if "accepting" in plain:
        plain["accepting"] = yes_or_no(plain["accepting"])
    return plain


def _preview_configure(bus: CommandBus, body: Body) -> dict[str, Any]:
    domain = Order(body, ["domain"], _SETTINGS).name("domain")
    record = _found(bus, domain)
    plain = _plain(_settings(record))
    keep = "How long finished commands and their ids stay (keep), like 7d or 12h"
    return preview(
        f"Configure {domain}",
        [
            _counts(domain, record, "waits", "wait"),
            "What is changed holds from the next send on; an empty limit is none.",
        ],
        "Save",
        fields=[
            *(field(name, label, "number", plain[name]) for name, label in _LIMITS.items()),
            field("keep", keep, "text", plain["keep"], required=True),
            field(
                *("accepting", "Accept sends (accepting)", "choice", plain["accepting"]),
                required=True,
                choices=["yes", "no"],
            ),
        ],
        undo="The settings of before can be put back; what a shorter keep removes is gone.",
        state=plain,
    )


def _configure(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["domain"], _SETTINGS)
    domain = order.name("domain")
    present = _settings(_found(bus, domain))
    given: dict[str, Any] = {name: order.whole(name) for name in _LIMITS if order.has(name)}
    if order.has("keep"):
        seconds = order.seconds("keep")
        if seconds is None:
            raise ValueError("keep must be a duration like 7d: it has no value for none")
        given["keep"] = _span(seconds)
    if order.has("accepting"):
        given["accepting"] = order.flag("accepting")
    order.check_state(f"domain {domain}", _plain(present))
    changed = {name: value for name, value in given.items() if value != present[name]}
    if not changed:
        raise InvalidOperationError(f"nothing of domain {domain} changes: all of it is so already")
    bus.configure(domain, **changed, operator=operator, reason=order.reason)
    before = {name: present[name] for name in changed}
    after = ", ".join(f"{name} {_text(value)}" for name, value in _plain(changed).items())
    return done(
        f"{domain} has {after}",
        count=len(changed),
        undo=undoing(
            *("configure", "Put the settings back", {"domain": domain}, _plain(before)),
            state=_plain(changed),
        ),
    )


def _span(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError("keep is too long") from None


def _text(value: object) -> str:
    return "none" if value is None else str(value)


ACTIONS = [
    Action("configure", _preview_configure, _configure),
    Action("pause", _preview_pause, _pause),
    Action("resume", _preview_resume, _resume),
]
