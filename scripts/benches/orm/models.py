from django.db import models


class Effect(models.Model):
    number = models.IntegerField()
