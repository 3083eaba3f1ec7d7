"""Actions on processes: cancel, retry, signal."""

from typing import Any
from uuid import UUID

from cmdbus.counting import count_of
from cmdbus.errors import InvalidOperationError, ProcessNotFoundError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.process_records import ProcessRecord, ProcessStatus, ProcessStep
from cmdbus.web.action import Action, Body
from cmdbus.web.actions.answers import FOR_GOOD, done, field, preview
from cmdbus.web.actions.order import Order

#: Steps that a sentence names; the others are counted.
_NAMED = 5


def _found(bus: CommandBus, process_id: UUID) -> ProcessRecord:
    process = bus.get_process(process_id)
    if process is None:
        raise ProcessNotFoundError(process_id)
    return process


def _title(process: ProcessRecord) -> str:
    return f"{process.domain}/{process.type} {process.process_id}"


def _awaited(steps: list[ProcessStep]) -> ProcessStep | None:
    return next((step for step in reversed(steps) if step.outcome is None), None)


def _to_undo(steps: list[ProcessStep]) -> list[str]:
    """Completed steps whose compensation has not been sent, the latest first."""
    return [
        step.step
        for step in reversed(steps)
        if step.undoes is None and step.outcome == "SUCCESS" and step.undone is None
    ]


def _preview_cancel(bus: CommandBus, body: Body) -> dict[str, Any]:
    process = _found(bus, Order(body, ["process_id"]).id("process_id"))
    if process.status.terminal or process.status is ProcessStatus.COMPENSATING:
        raise InvalidOperationError(
            f"process {process.process_id} cannot be canceled: it is {process.status}"
        )
    steps = bus.process_steps(process.process_id)
    touches = []
    if awaited := _awaited(steps):
        touches.append(
            f"It awaits {awaited.step} ({awaited.domain}/{awaited.type}, "
            f"{awaited.command_status or 'no longer kept'}), which is canceled, also if it runs or "
            f"is in the troubleshooting queue."
        )
    undone = _to_undo(steps)
    touches.append(
        f"Then workers undo {count_of(len(undone), 'completed step')}: {_listed(undone)}."
        if undone
        else "No completed step has to be undone."
    )
    return preview(
        f"Cancel the process {_title(process)}",
        touches,
        "Cancel the process",
        count=len(undone),
        grave=True,
        state={"status": process.status.value, "step": process.step},
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _cancel(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["process_id"])
    process = _checked(bus, order)
    bus.cancel_process(process.process_id, operator=operator, reason=order.reason)
    after = _found(bus, process.process_id)
    return done(f"the process is canceled: it is {after.status} now", count=1, undone=FOR_GOOD)


def _preview_retry(bus: CommandBus, body: Body) -> dict[str, Any]:
    process = _found(bus, Order(body, ["process_id"]).id("process_id"))
    steps = bus.process_steps(process.process_id)
    if process.status is ProcessStatus.FAILED:
        failed = [step.step for step in steps if step.undone in ("FAILED", "CANCELED")]
        touches = f"Compensations that have failed are sent again: {_listed(failed) or 'none'}."
    elif process.status.terminal:
        raise InvalidOperationError(
            f"process {process.process_id} cannot be retried: it is {process.status}"
        )
    elif awaited := _awaited(steps):
        touches = (
            f"It awaits {awaited.step} ({awaited.domain}/{awaited.type}, "
            f"{awaited.command_status or 'no longer kept'}): what of it is in the troubleshooting "
            f"queue runs again, and so do commands to the process itself."
        )
    else:
        touches = "Commands to the process itself that are in the troubleshooting queue run again."
    return preview(
        f"Retry the process {_title(process)}",
        touches,
        "Retry it",
        state={"status": process.status.value, "step": process.step},
    )


def _retry(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["process_id"])
    process = _checked(bus, order)
    bus.retry_process(process.process_id, operator=operator, reason=order.reason)
    return done("the process goes on", count=1, undone="Cancel what runs again to stop it.")


def _preview_signal(bus: CommandBus, body: Body) -> dict[str, Any]:
    process = _found(bus, Order(body, ["process_id"], ["name", "data"]).id("process_id"))
    if process.status.terminal:
        raise InvalidOperationError(
            f"process {process.process_id} cannot be signaled: it is over ({process.status})"
        )
    return preview(
        f"Signal the process {_title(process)}",
        f"It is {process.status}, at step {process.step or 'none'}. A worker calls on_signal of "
        f"its manager with this name and this data.",
        "Send the signal",
        fields=[
            field("name", "Name of the signal", required=True),
            field("data", "Data (JSON)", "json", "null"),
        ],
    )


def _signal(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["process_id"], ["name", "data"])
    process_id, name = order.id("process_id"), order.text("name")
    if name is None:
        raise ValueError("name must be the name of a signal, and it is empty")
    data = order.json("data")
    bus.signal_process(process_id, name, data, operator=operator, reason=order.reason)
    return done(f"the signal {name} is sent", count=1, undone=FOR_GOOD)


def _checked(bus: CommandBus, order: Order) -> ProcessRecord:
    process = _found(bus, order.id("process_id"))
    present = {"status": process.status.value, "step": process.step}
    order.check_state(f"process {process.process_id}", present)
    return process


ACTIONS = [
    Action("cancel_process", _preview_cancel, _cancel),
    Action("retry_process", _preview_retry, _retry),
    Action("signal_process", _preview_signal, _signal),
]
