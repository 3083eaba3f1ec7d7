"""The fixtures of pytest. What they need is imported when a test asks for it: pytest loads this in
every project of the environment."""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from cmdbus.embedded import EmbeddedPostgres
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.records import CommandRecord
    from cmdbus.testing.executed import Executed
    from cmdbus.testing.tester import CommandTester


@pytest.fixture(scope="session")
def cmdbus_server(pytestconfig: pytest.Config) -> "Iterator[EmbeddedPostgres]":
    """An embedded PostgreSQL of this project's own, for the run; its processes share it."""
    from cmdbus.testing.server import project_server

    with project_server(pytestconfig.rootpath) as server:
        yield server


@pytest.fixture(scope="session")
def cmdbus_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """The database of the other fixtures: on `cmdbus_server`, with the schema; each run and worker
    of pytest-xdist has one. With pytest-django it is the project's test database. Override it to
    use the database of your own tests."""
    if (project := _django_project(request.config)) is not None:
        request.getfixturevalue("django_db_setup")
        yield str(project.dsn())
        return
    from cmdbus.testing.server import prepared_database

    server = request.getfixturevalue("cmdbus_server")
    with prepared_database(server.dsn, os.environ.get("PYTEST_XDIST_WORKER")) as dsn:
        yield dsn


@pytest.fixture(autouse=True)
def _cmdbus_cleared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Before a test that uses the fixtures, refuses a database that is not for tests; after it,
    deletes all commands: last of all, as those that are always used end after the others, whose
    transactions have locked rows."""
    if "command_tester" not in request.fixturenames:
        yield
        return
    from cmdbus.testing.tester import CommandTester

    tester = CommandTester(request.getfixturevalue("cmdbus_dsn"), schema=_schema(request.config))
    tester.check()
    yield
    tester.clear()


@pytest.fixture
def command_tester(request: pytest.FixtureRequest, cmdbus_dsn: str) -> "CommandTester":
    from cmdbus.testing.tester import CommandTester

    project = _django_project(request.config)
    if project is not None and cmdbus_dsn == project.dsn():
        return CommandTester()  # in the transaction of the test
    return CommandTester(cmdbus_dsn)


def _schema(config: pytest.Config) -> str:
    project = _django_project(config)
    return "cmdbus" if project is None else str(project.schema())


def _django_project(config: pytest.Config) -> "ModuleType | None":
    """That of pytest-django, if it has the app cmdbus.django."""
    if not config.pluginmanager.hasplugin("django"):
        return None
    from cmdbus.testing.django_project import django_project

    return django_project()


@pytest.fixture
def bus(
    request: pytest.FixtureRequest, cmdbus_dsn: str, command_tester: "CommandTester"
) -> "Iterator[CommandBus]":
    from cmdbus.producer.bus import CommandBus

    with CommandBus(cmdbus_dsn, schema=_schema(request.config)) as bus:
        yield bus


@pytest.fixture
def run_commands(command_tester: "CommandTester") -> "Callable[..., list[Executed]]":
    """See CommandTester.run_commands."""
    return command_tester.run_commands


@pytest.fixture
def sent(command_tester: "CommandTester") -> "Callable[..., list[CommandRecord]]":
    """See CommandTester.sent."""
    return command_tester.sent


@pytest.fixture
def travel(command_tester: "CommandTester") -> Callable[..., None]:
    """See CommandTester.travel."""
    return command_tester.travel
