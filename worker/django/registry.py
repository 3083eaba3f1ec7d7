"""What a registry made with `django=True` has that others have not: Django's connection in each
handler, and the handlers of the project's tasks."""

from functools import partial

from django.core.exceptions import ImproperlyConfigured

from cmdbus.app_errors import app_error
from cmdbus.django.buses import backends
from cmdbus.django.surroundings import surround
from cmdbus.errors import AppError, CmdbusError
from cmdbus.handlers import Handler
from cmdbus.registry import HandlerRegistry


def prepare(registry: HandlerRegistry) -> None:
    """The tasks are looked for when handlers are first asked for; what is wrong with them, or with
    the settings, is an AppError."""
    surround(registry)
    registry.register_later(partial(_task_handlers, registry))


def _task_handlers(registry: HandlerRegistry) -> list[Handler]:
    if not backends():
        return []  # The project may have no task framework.
    try:
        from cmdbus.django.task_handlers import task_handlers
        from cmdbus.django.task_schedules import schedule_tasks

        handlers = task_handlers()
        schedule_tasks(registry, handlers)
        return handlers
    except CmdbusError:
        raise
    except ImproperlyConfigured as error:
        raise AppError(str(error)) from None
    except Exception as error:
        raise app_error("looking for the tasks that the settings name", error, __file__) from error
