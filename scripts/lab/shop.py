"""The application of a shop: what its commands do, their data say. The operators' page is tested,
and its pictures are taken, with a fleet of it.
"""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cmdbus import (
    Breaker,
    BusinessRuleError,
    Command,
    Context,
    HandlerRegistry,
    PermanentCommandError,
    ProcessManager,
    Reply,
    RetryPolicy,
    SendRequest,
    TransientCommandError,
)

registry = HandlerRegistry()
registry.breaker(Breaker("bank", failures=4, window=60, cooldown=3600))
registry.limit("printer", concurrency=2)
_SOON = RetryPolicy(max_attempts=3, backoff=(0.1,), jitter=0.0)


def act(command: Command, context: Context) -> Any:
    """What the data ask for: `seconds` of work, then `refused`, `wrong` or `failing`, which are
    codes of errors, or a `result`. With `until` only attempts before that number fail."""
    data = command.data or {}
    time.sleep(data.get("seconds", 0))
    if context.attempt < data.get("until", context.attempt + 1):
        if "refused" in data:
            raise BusinessRuleError(data["refused"], "the shop's rules do not allow that")
        if "wrong" in data:
            raise PermanentCommandError(data["wrong"], f"{data.get('order')}: which one is meant?")
        if "failing" in data:
            _call_other_side(data["failing"])
    return data.get("result", {"order": data.get("order")})


def _call_other_side(code: str) -> None:
    try:
        raise ConnectionResetError("connection reset by peer")
    except ConnectionResetError as error:
        raise TransientCommandError(code, f"the other side does not answer: {error}") from error


@registry.handler("reports", "Export", timeout=3600)
def export(command: Command, context: Context) -> Any:
    return act(command, context)


@registry.schedule("0 3 * * *", timezone="Europe/Berlin", name="nightly-close", data={"seconds": 0})
@registry.schedule(every="15m", name="stock-count", missed="none")
@registry.handler("stock", "Count")
def count(command: Command, context: Context) -> Any:
    return act(command, context)


for domain, type_, options in (
    ("payments", "Charge", {}),
    ("payments", "Payout", {"breaker": "bank"}),
    ("payments", "Refund", {"concurrency": 1}),
    ("stock", "Reserve", {}),
    ("stock", "Release", {}),
    ("parcels", "Pack", {"limit": "printer"}),
    ("parcels", "Recall", {}),
    ("mail", "Confirm", {}),
    ("mail", "Newsletter", {"rate": "30/min", "burst": 30}),
):
    registry.register(domain, type_, act, retry=_SOON, timeout=600, **options)


@dataclass
class Order:
    order: int
    amount: float
    #: The step that fails, and how: `refused` undoes what was done, `wrong` waits for an operator.
    fails: str = ""
    how: str = "refused"
    slow: float = 0.0


_COMMANDS = {
    "RESERVE": ("stock", "Reserve"),
    "CHARGE": ("payments", "Charge"),
    "PACK": ("parcels", "Pack"),
    "CONFIRM": ("mail", "Confirm"),
}
_UNDO = {
    "RESERVE": ("stock", "Release"),
    "CHARGE": ("payments", "Refund"),
    "PACK": ("parcels", "Recall"),
}


class Purchase(ProcessManager[Order]):
    domain, type = "orders", "Purchase"

    class Step(StrEnum):
        RESERVE = "RESERVE"
        CHARGE = "CHARGE"
        PACK = "PACK"
        CONFIRM = "CONFIRM"

    def first_step(self, state: Order) -> Step:
        return self.Step.RESERVE

    def build_command(self, step: Step, state: Order) -> SendRequest:
        data: dict[str, Any] = {"order": state.order, "amount": state.amount}
        if step == state.fails:
            data[state.how] = "NOT_IN_STOCK"
        if step is self.Step.PACK and state.slow:
            data["seconds"] = state.slow
        return SendRequest(*_COMMANDS[step], data)

    def update_state(self, state: Order, step: Step, reply: Reply) -> Order:
        return state

    def next_step(self, state: Order, step: Step, reply: Reply) -> Step | None:
        steps = list(self.Step)
        return None if step is steps[-1] else steps[steps.index(step) + 1]

    def compensation(self, step: Step, state: Order) -> SendRequest | None:
        undo = _UNDO.get(step)
        return undo and SendRequest(*undo, {"order": state.order})


registry.register_process(Purchase())
