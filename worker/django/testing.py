"""Which session the tests of a project are about: cmdbus.testing asks, by this module's name."""

from typing import Any

from django.db import connections

from cmdbus.django.buses import bus_of_process
from cmdbus.django.dsn import dsn_of


def open_session() -> Any:
    """That of Django's connection, if a transaction is open on it, as in a TestCase; or None."""
    wrapper = connections[bus_of_process().using]
    return wrapper.connection if wrapper.in_atomic_block else None


def dsn() -> str:
    """Of the database that Django's connection is to, which is the test runner's."""
    return dsn_of(bus_of_process().using)


def schema() -> str:
    return bus_of_process().schema
