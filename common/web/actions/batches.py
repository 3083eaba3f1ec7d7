"""Actions on batches."""

from typing import Any
from uuid import UUID

from cmdbus.errors import BatchNotFoundError, InvalidOperationError
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import BatchRecord
from cmdbus.web.action import Action, Body
from cmdbus.web.actions.answers import FOR_GOOD, commands, done, number, preview
from cmdbus.web.actions.order import Order


def _found(bus: CommandBus, batch_id: UUID) -> BatchRecord:
    batch = bus.get_batch(batch_id)
    if batch is None:
        raise BatchNotFoundError(batch_id)
    return batch


def _preview_cancel(bus: CommandBus, body: Body) -> dict[str, Any]:
    batch = _found(bus, Order(body, ["batch_id"]).id("batch_id"))
    if batch.status.terminal:
        raise InvalidOperationError(f"batch {batch.batch_id} is over: it is {batch.status}")
    left = batch.remaining - batch.in_troubleshooting
    touches = [
        f"Of its {commands(batch.total)}, {number(left)} wait or run: those that wait are "
        f"canceled, each with its reply; those that run end as usual.",
        "Nothing can be added from now on; once it is over, what on_cancel says is sent.",
    ]
    if batch.in_troubleshooting:
        stay = "stays" if batch.in_troubleshooting == 1 else "stay"
        touches.append(
            f"{number(batch.in_troubleshooting)} in the troubleshooting queue {stay} there, "
            f"until an operator decides."
        )
    return preview(
        f"Cancel the batch {batch.name or batch.batch_id}",
        touches,
        "Cancel the batch",
        count=left,
        grave=True,
    )


def _cancel(bus: CommandBus, body: Body, operator: str) -> dict[str, Any]:
    order = Order(body, ["batch_id"])
    before = _found(bus, order.id("batch_id"))
    bus.cancel_batch(before.batch_id, operator=operator, reason=order.reason)
    after = bus.get_batch(before.batch_id) or before
    count = max(0, after.canceled - before.canceled)
    left = f"; {number(after.remaining)} of it are not over yet" if after.remaining else ""
    return done(f"{commands(count)} of the batch canceled{left}", count=count, undone=FOR_GOOD)


ACTIONS = [Action("cancel_batch", _preview_cancel, _cancel)]
