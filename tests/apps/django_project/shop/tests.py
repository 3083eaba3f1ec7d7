"""Requests, and the tasks that they enqueue. What a test writes is rolled back after it."""

from django.test import TestCase

from cmdbus import HandlerRegistry
from cmdbus.testing import CommandTester
from django_project.shop.models import Mail, Payment

registry = HandlerRegistry(django=True)


class OrderTests(TestCase):
    def place(self, number: str, amount: int) -> int:
        order = {"number": number, "amount": amount}
        return self.client.post("/orders", order).status_code

    def charge_of(self, number: str) -> str:
        return self.client.get(f"/orders/{number}").json()["charge"]

    def test_an_order_is_charged_and_its_customer_hears_of_it(self) -> None:
        self.assertEqual(self.place("A-1", 5), 201)
        self.assertEqual(self.charge_of("A-1"), "READY")
        CommandTester().run_commands(registry, until="idle")
        self.assertEqual(self.charge_of("A-1"), "SUCCESSFUL")
        self.assertEqual(Payment.objects.get().amount, 5)
        self.assertEqual(Mail.objects.get().subject, "Order A-1 is paid")

    def test_an_order_of_a_large_amount_is_declined(self) -> None:
        self.assertEqual(self.place("A-2", 1000), 201)
        CommandTester().run_commands(registry, until="idle", raises=False)
        self.assertEqual(self.charge_of("A-2"), "FAILED")
        self.assertFalse(Payment.objects.exists())

    def test_an_order_that_is_there_already_is_charged_once(self) -> None:
        self.assertEqual([self.place("A-3", 5), self.place("A-3", 5)], [201, 409])
        self.assertEqual(len(CommandTester().run_commands(registry)), 1)
