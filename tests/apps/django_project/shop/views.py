"""What the web server runs."""

from decimal import Decimal

from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from django_project.shop.models import Order
from django_project.shop.tasks import charge


@require_POST
def place_order(request: HttpRequest) -> HttpResponse:
    number, amount = request.POST["number"], Decimal(request.POST["amount"])
    try:
        with transaction.atomic():  # the order and the task that charges it, or neither
            order = Order.objects.create(number=number, amount=amount)
            order.charge_id = charge.enqueue(order.pk).id
            order.save()
    except IntegrityError:
        return HttpResponse(f"there is an order {number} already", status=409)
    return JsonResponse({"number": number}, status=201)


def show_order(request: HttpRequest, number: str) -> HttpResponse:
    order = get_object_or_404(Order, number=number)
    return JsonResponse(
        {
            "number": number,
            "charge": charge.get_result(order.charge_id).status,
            "payments": [str(payment.amount) for payment in order.payments.all()],
            "mails": [mail.subject for mail in order.mails.all()],
        }
    )
