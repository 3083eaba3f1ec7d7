"""The Django project whose tests run in this process, if it has the app cmdbus.django."""

import sys
from importlib import import_module
from types import ModuleType


def django_project() -> ModuleType | None:
    """What cmdbus.django knows for tests. It is imported by its name, and only where Django has
    imported the app."""
    return import_module("cmdbus.django.testing") if "cmdbus.django.apps" in sys.modules else None
