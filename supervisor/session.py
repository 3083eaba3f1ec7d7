"""How a sub-command of `cmdbus` gets its bus, and how it fails: in one sentence."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cmdbus.errors import CmdbusError
from cmdbus.supervisor.options import database_options

if TYPE_CHECKING:
    from cmdbus.bus import CommandBus

F = TypeVar("F", bound=Callable[..., Any])


class Mistake(click.ClickException):
    """What was asked for makes no sense; like wrong usage, without its lines."""

    exit_code = 2


@contextmanager
def sentences() -> Iterator[None]:
    """Expected errors are one sentence, without a traceback."""
    try:
        yield
    except ValueError as error:
        raise Mistake(str(error)) from None
    except CmdbusError as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def database(dsn: str | None) -> Iterator[str]:
    """The DSN to use; without one the embedded server runs meanwhile."""
    if dsn is not None:
        yield dsn
        return
    from cmdbus.embedded import EmbeddedPostgres

    with EmbeddedPostgres() as server:
        yield server.dsn


@contextmanager
def opened(dsn: str | None, schema: str) -> "Iterator[CommandBus]":
    from cmdbus.bus import CommandBus
    from cmdbus.sentences import in_one_sentence

    with (
        sentences(),
        in_one_sentence(),
        database(dsn) as where,
        CommandBus(where, schema=schema) as bus,
    ):
        yield bus


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def board_options(command: F) -> F:
    """--runtime-dir and --name."""
    name = click.option(
        "--name",
        default="cmdbus",
        show_default=True,
        envvar="CMDBUS_NAME",
        show_envvar=True,
        help="The supervisor's name.",
    )
    directory = click.option(
        "--runtime-dir",
        metavar="DIR",
        type=click.Path(path_type=Path),
        envvar="CMDBUS_RUNTIME_DIR",
        show_envvar=True,
        help="Where its board is. Without: the first usual place.",
    )
    return directory(name(command))


def ignored_options(*names: str) -> Callable[[F], F]:
    """Those that every command takes, for one that has no use for them."""

    def decorate(command: F) -> F:
        for name in names:
            command = click.option(name, hidden=True, expose_value=False)(command)
        return command

    return decorate


def with_bus(command: F) -> F:
    """Gives a command, as its first two arguments, the bus and whether to print JSON."""

    @database_options
    @json_option
    @ignored_options("--runtime-dir", "--name")
    @functools.wraps(command)
    def run(dsn: str | None, schema: str, as_json: bool, **arguments: Any) -> None:
        with opened(dsn, schema) as bus:
            command(bus, as_json, **arguments)

    return run  # type: ignore[return-value]  # what click calls takes only names
