"""The settings, for Django 5.2 with the package django-tasks and for Django 6, which has tasks of
its own."""

import os

import django
from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = "of no use outside the tests"
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
ROOT_URLCONF = "django_project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django_project.shop", "django_project.blog", "cmdbus.django"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")

_server = conninfo_to_dict(os.environ.get("CMDBUS_DSN", "dbname=shop"))
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _server.get("dbname", ""),
        "USER": _server.get("user", ""),
        "PASSWORD": _server.get("password", ""),
        "HOST": _server.get("host", ""),
        "PORT": _server.get("port", ""),
    }
}

TASKS = {
    "default": {
        "BACKEND": "cmdbus.django.CommandBusBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"tasks": {"django_project.shop.tasks.charge": {"max_attempts": 3}}},
    }
}
