"""The same insert by tasks of Django, by handlers without Django, and by the workers of
django-tasks-db."""

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from benches.comparison import Comparison, Found, Place
from benches.fleet import DOMAIN, TYPE, Fleet, fleet
from benches.orm.project import Project
from benches.yard import Yard, warming, yard
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.producer.requests import SendRequest

#: Of --commands; and of these, those of the other workers, which are slower.
_PART, _PEER_PART = 10, 20
_PROCESSES, _THREADS = 2, 8
_DATA = {"args": [7], "kwargs": {}}
_HANDLED = SendRequest(DOMAIN, TYPE, _DATA)
_TASK = SendRequest("tasks", "benches.orm.tasks.insert", _DATA)
_APP = "cmdbus.django.app:registry"
_fleet = partial(fleet, processes=_PROCESSES, threads=_THREADS)
#: As Django writes it.
_INSERT = 'INSERT INTO "orm_effect" ("number") VALUES (%s) RETURNING "orm_effect"."id"'


def django(slot: Place) -> Found:
    """Tasks that insert a row by the ORM of Django, 2 x 8, against handlers that insert it through
    context.connection, 2 x 8, and against two processes of the db_worker of django-tasks-db."""
    missing = [name for name in ("django", "django_tasks_db") if find_spec(name) is None]
    for name in missing:
        print(f"django: No module named {name!r}", file=sys.stderr)
    if "django" in missing:
        return {}
    project = Project(slot.dsn)
    project.migrate()
    count = max(1, slot.sizes.commands // _PART)
    sizes = {"processes": _PROCESSES, "threads": _THREADS}
    with (
        yard(slot) as here,
        _fleet(slot.dsn, {TYPE: insert}) as plain,
        _fleet(slot.dsn, {}, app=_APP, environment=project.environment) as orm,
    ):
        sides = {
            "django": _drain(here, plain, _HANDLED, count),
            "": _drain(here, orm, _TASK, count),
            "django-db-worker": lambda: project.drain_by_peer(
                here, max(1, count // _PEER_PART), _PROCESSES
            ),
        }
        if missing:
            del sides["django-db-worker"]
        rounds = [
            dict(zip(sides, figures, strict=True)) for figures in slot.rounds(*sides.values())
        ]
    configuration = {**sizes, "commands": count}
    return {
        name: Comparison(
            pairs=[(each[name], each[""]) for each in rounds], configuration=configuration
        )
        for name in sides
        if name
    }


def insert(command: Command, context: Context) -> None:
    context.connection.execute(_INSERT, (command.data["args"][0],))


def _drain(here: Yard, running: Fleet, request: SendRequest, count: int) -> Callable[[], float]:
    """Commands a second; its sessions have planned in a smaller drain before."""
    requests = [request] * count
    here.drain(running, warming(requests))
    return lambda: here.drain(running, requests).rate
