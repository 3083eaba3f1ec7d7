"""A day of the shop: commands, batches and processes in each state that a page can show."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from cmdbus import BreakerState, CommandBus, SendRequest, Status

OPERATOR = "ann"
#: Seconds that commands run which are to be seen running.
_LONG = 3000.0
#: The states in which its purchases begin, and what becomes of them: status, and step.
_PURCHASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "done": ({}, "COMPLETED", "CONFIRM"),
    "undone": ({"fails": "PACK", "how": "refused"}, "COMPENSATED", "RESERVE"),
    "stopped": ({"fails": "CHARGE", "how": "wrong"}, "WAITING_FOR_TSQ", "CHARGE"),
    "packing": ({"slow": _LONG}, "WAITING_FOR_REPLY", "PACK"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopDay:
    """Some of what was sent, by what it shows."""

    #: Of stock: with a key and a reply, and with other commands of its correlation id.
    completed: UUID
    #: Of payments: in troubleshooting, after one attempt.
    wrong: UUID
    #: Of parcels: in troubleshooting, after three.
    failing: UUID
    #: Of reports.
    running: UUID
    later: UUID
    #: Of audits, a domain that is paused.
    waiting: UUID
    batch: UUID
    purchases: dict[str, UUID]


def send_shop_day(bus: CommandBus) -> ShopDay:
    """Without waiting for what becomes of it."""
    bus.configure("payments", max_depth=5000, warn_depth=4000, operator=OPERATOR)
    bus.pause("audits", operator=OPERATOR, reason="the auditors are on holiday")
    waiting = _send(bus, "audits", "Check", ({"n": n} for n in range(12)))
    _send(bus, "payments", "Payout", [{"failing": "BANK_AWAY"}] * 4)
    for n in range(6):
        data = {"order": n, "seconds": _LONG}
        bus.send("payments", "Refund", data, key=f"customer-{n % 2}")
    wrong, failing = _send_charges_and_parcels(bus)
    running = bus.send("reports", "Export", {"month": "2026-10", "seconds": _LONG})
    later = bus.send("reports", "Export", {"month": "2026-11"}, delay=3 * 3600)
    canceled = bus.send("reports", "Export", {"month": "2025-10"}, delay=7200)
    bus.cancel("reports", canceled, operator=OPERATOR, reason="ordered twice")
    return ShopDay(
        completed=_send_related(bus),
        wrong=wrong,
        failing=failing,
        running=running,
        later=later,
        waiting=waiting[0],
        batch=_create_batches(bus),
        purchases={
            name: bus.start_process("orders", "Purchase", {"order": n, "amount": 99.5, **state})
            for n, (name, (state, _, _)) in enumerate(_PURCHASES.items(), 2000)
        },
    )


def _send(bus: CommandBus, domain: str, type_: str, data: Iterable[Any]) -> list[UUID]:
    return bus.send_many(SendRequest(domain, type_, each) for each in data)


def _send_charges_and_parcels(bus: CommandBus) -> tuple[UUID, UUID]:
    """One in troubleshooting of each."""
    codes = ("CARD_EXPIRED", "NO_SUCH_ACCOUNT")
    _send(
        bus, "payments", "Charge", ({"order": n, "amount": n, "seconds": 0.02} for n in range(60))
    )
    _send(bus, "payments", "Charge", [{"order": 950, "refused": "LIMIT_EXCEEDED"}] * 4)
    wrong = _send(
        bus, "payments", "Charge", ({"order": 900 + n, "wrong": codes[n % 2]} for n in range(7))
    )
    _send(bus, "parcels", "Pack", [{"order": 5, "failing": "CARRIER_AWAY", "until": 2}] * 5)
    failing = _send(bus, "parcels", "Recall", [{"order": 970, "failing": "CARRIER_AWAY"}] * 3)
    return wrong[0], failing[0]


def _send_related(bus: CommandBus) -> UUID:
    """The first of three commands of one correlation id."""
    correlation_id = uuid4()
    first, _, _ = bus.send_many(
        [
            SendRequest(
                *("stock", "Reserve", {"order": 1000, "items": [{"sku": "A-7", "count": 2}]}),
                correlation_id=correlation_id,
                reply_to="orders-desk",
                key="customer-7",
            ),
            SendRequest("payments", "Charge", {"order": 1000}, correlation_id=correlation_id),
            SendRequest("mail", "Confirm", {"order": 1000}, correlation_id=correlation_id),
        ]
    )
    return first


def _create_batches(bus: CommandBus) -> UUID:
    """The one that goes on."""
    bus.create_batch(
        "stock", (SendRequest("stock", "Count", {"shelf": n}) for n in range(40)), name="inventory"
    )
    readers: list[dict[str, Any]] = [{"reader": n} for n in range(54)]
    readers[0] |= {"wrong": "NO_ADDRESS"}
    readers[1] |= {"refused": "UNSUBSCRIBED"}
    return bus.create_batch(
        "mail",
        [SendRequest("mail", "Newsletter", reader) for reader in readers],
        name="November newsletter",
        on_complete=SendRequest("reports", "Export", {"of": "newsletter"}),
    )


def unsettled(bus: CommandBus, day: ShopDay) -> list[str]:
    """What is not yet as the day is meant to be seen."""
    found = []
    for domain, id_, status in (
        ("stock", day.completed, Status.COMPLETED),
        ("payments", day.wrong, Status.IN_TROUBLESHOOTING_QUEUE),
        ("parcels", day.failing, Status.IN_TROUBLESHOOTING_QUEUE),
        ("reports", day.running, Status.IN_PROGRESS),
    ):
        record = bus.get(domain, id_)
        if record is None or record.status is not status:
            found.append(f"{domain} {id_}: {record and record.status}")
    for name, id_ in day.purchases.items():
        process = bus.get_process(id_)
        if process is None or (process.status, process.step) != _PURCHASES[name][1:]:
            found.append(f"{name} {id_}: {process and (process.status, process.step)}")
    payments = next(domain for domain in bus.domains() if domain.domain == "payments")
    if payments.types["Charge"].ready:
        found.append("charges wait")
    if all(breaker.state is not BreakerState.OPEN for breaker in bus.breakers.list()):
        found.append("the breaker is closed")
    return found
