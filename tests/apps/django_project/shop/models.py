from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=50, unique=True)
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    placed_at = models.DateTimeField(auto_now_add=True)
    #: The id of the result of the task that charges it.
    charge_id = models.CharField(max_length=50, blank=True)


class Payment(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="payments")
    amount = models.DecimalField(max_digits=10, decimal_places=2)
    paid_at = models.DateTimeField()
    #: What the task's run knew of itself.
    details = models.JSONField(default=dict)


class Mail(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="mails")
    subject = models.CharField(max_length=200)
