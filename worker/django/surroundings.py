"""What is around each handler of a registry made with `django=True`: Django's connection is lent to
it, and connections to other databases are closed in time, as around a request."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import django
from django.apps import apps
from django.conf import ENVIRONMENT_VARIABLE, settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.django.buses import VENDOR, bus_of_process
from cmdbus.django.lending import lent
from cmdbus.registry import HandlerRegistry

#: Connections of the process before the fork: kept, as the end of such an object might write to
#: its socket, which that process uses.
_inherited: list[object] = []


def surround(registry: HandlerRegistry) -> None:
    """Sets Django up, if nothing has, and puts it around the handlers of this registry."""
    if not settings.configured and not os.environ.get(ENVIRONMENT_VARIABLE):
        raise ValueError(
            f"HandlerRegistry(django=True) needs the settings of a project: set "
            f"{ENVIRONMENT_VARIABLE} to their module, as manage.py does"
        )
    if not (apps.ready or apps.loading):
        django.setup()
    alias = bus_of_process().using
    if connections[alias].vendor != VENDOR:
        raise ImproperlyConfigured(
            f"HandlerRegistry(django=True) lends DATABASES[{alias!r}] to its handlers, and that is "
            f"{connections[alias].display_name}: it must be the PostgreSQL database of the worker"
        )
    registry.django_surroundings = partial(_surroundings, alias)
    registry.on_start(partial(_leave_inherited, os.getpid()))


@contextmanager
def _surroundings(alias: str, command: Command, context: Context) -> Iterator[None]:
    kept = {each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block}
    _close_old(kept)
    try:
        with lent(context, alias):
            yield
    finally:
        _close_old(kept)


def _close_old(kept: set[str]) -> None:
    """Not those in a transaction of a test, which are `kept`; one that a handler has left in a
    transaction is thrown away with that."""
    for each in connections.all(initialized_only=True):
        if each.alias in kept:
            continue
        if each.in_atomic_block:
            each.close()
            del connections[each.alias]
        else:
            each.close_if_unusable_or_obsolete()


def _leave_inherited(pid: int) -> None:
    """Forgets connections that were opened before a fork. Their sockets stay as they are: the other
    process uses them."""
    if os.getpid() == pid:
        return
    for each in connections.all(initialized_only=True):
        pools = getattr(each, "_connection_pools", {})
        _inherited.append((each, dict(pools)))
        pools.clear()
        del connections[each.alias]
