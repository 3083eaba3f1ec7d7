"""cmdbus in a project of Django: its connection in handlers, its tasks, its settings and commands.

    apps, models        what INSTALLED_APPS names
    CommandBusBackend   the backend of django.tasks, for the setting TASKS

Nothing of cmdbus imports this room but `HandlerRegistry(django=True)`, when it is called, and
nothing here needs the supervisor. The backend is loaded when it is first used: Django imports this
module before its apps are ready.
"""

if __name__ != "cmdbus.django":
    raise ImportError(f"this directory is cmdbus.django, not {__name__}: pip install -e .")

from importlib import import_module


def __getattr__(name: str) -> object:
    if name != "CommandBusBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("cmdbus.django.backend"), name)
