"""What the workers run."""

import os

import httpx

from cmdbus import BusinessRuleError, Command, Context, HandlerRegistry
from flask_app.models import Charge, Order, Payment

registry = HandlerRegistry()
provider: httpx.Client


@registry.on_start
def open_provider() -> None:
    global provider
    provider = httpx.Client(base_url=os.environ["PROVIDER_URL"], timeout=10)


@registry.on_stop
def close_provider() -> None:
    provider.close()


@registry.handler("payments", "Charge")
def charge(command: Command[Charge], context: Context) -> str:
    """The receipt. A command whose worker dies runs again: the provider then sees the same
    idempotency key and charges nothing, and the payment's row commits with the command."""
    response = provider.post(
        "/charges",
        headers={"Idempotency-Key": str(command.command_id)},
        json={"amount": str(command.payload.amount)},
    )
    if response.status_code == 402:
        raise BusinessRuleError("DECLINED", f"order {command.payload.order} was declined")
    response.raise_for_status()  # any other error is tried again
    receipt: str = response.json()["receipt"]
    order = context.session.get_one(Order, command.payload.order)
    order.payments.append(Payment(receipt=receipt))
    return receipt
