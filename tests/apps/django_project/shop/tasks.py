"""What the workers run. Each commits what it wrote together with its result, or writes nothing."""

from typing import Any

from django.utils import timezone

from cmdbus import BusinessRuleError
from django_project.decorator import task
from django_project.shop.models import Mail, Order, Payment


@task(takes_context=True)
def charge(context: Any, order_id: int) -> str:
    """Pays for an order, and leaves it to another task to say so."""
    order = Order.objects.get(pk=order_id)
    if order.amount >= 1000:
        raise BusinessRuleError("DECLINED", f"order {order.number} was declined")
    payment = Payment.objects.create(
        order=order,
        amount=order.amount,
        paid_at=timezone.now(),
        details={"attempt": context.attempt},
    )
    confirm.enqueue(order.pk)
    return f"payment {payment.pk}"


@task(queue_name="mail", priority=10)
def confirm(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    order.mails.create(subject=f"Order {order.number} is paid")


@task
def count_mails() -> int:
    return Mail.objects.count()
