"""The bus of a sub-command of `cmdbus`, and its errors: one sentence each."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cmdbus.checks import did_you_mean
from cmdbus.counting import count_of
from cmdbus.errors import CmdbusError, MissingRightError
from cmdbus.printable import with_notes
from cmdbus.supervisor.cli.options import audit_options, database_options, option, stacked
from cmdbus.supervisor.cli.output import Shown, show_json, show_lines

if TYPE_CHECKING:
    from cmdbus.embedded import EmbeddedPostgres
    from cmdbus.producer.bus import CommandBus


class UsageProblem(click.ClickException):
    """A usage error that click shows without the usage lines."""

    exit_code = 2


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Expected errors are one sentence, without a traceback."""
    try:
        yield
    except ValueError as error:
        raise UsageProblem(str(error)) from None
    except CmdbusError as error:
        raise click.ClickException(with_notes(error, str(error))) from None


@contextmanager
def database(dsn: str | None, *, embedded: bool, schema: str | None) -> Iterator[str]:
    """The DSN to use. Without one it is that of the embedded server, if it is running;
    only with `embedded` is it started, and gets the `schema`, unless that is None."""
    if dsn is not None:
        yield dsn
        return
    server = _embedded_server(start=embedded)
    try:
        if embedded and schema is not None:
            server.install(schema)
        yield server.dsn
    finally:
        server.close()


def _embedded_server(*, start: bool) -> "EmbeddedPostgres":
    from cmdbus.embedded import EmbeddedError, EmbeddedPostgres

    try:
        server = EmbeddedPostgres()
    except EmbeddedError:  # without PostgreSQL's programs none is running
        if start:
            raise
    else:
        if start:
            server.start()
        if start or server.join():
            return server
    raise UsageProblem(
        "no database is named, and no embedded PostgreSQL is running here: give --dsn-file, "
        "--dsn, CMDBUS_DSN or DATABASE_URL, or start an embedded one with --embedded"
    )


def check_known(bus: "CommandBus", domain: str) -> None:
    """Refuses a domain that has no settings and no kept command; a monitor's role, which cannot
    list commands, is shown it as empty."""
    try:
        if bus.domains(domain) or bus.query(domain, limit=1):
            return
    except MissingRightError:
        return
    near = did_you_mean(domain, [record.domain for record in bus.domains()])
    hint = near or "cmdbus domain list shows those that exist"
    raise click.ClickException(
        f"domain {domain} has no settings, and no command was ever sent to it or none is kept: "
        f"{hint}"
    )


def one_domain(named: str | None, option: str | None) -> str | None:
    """The domain, which can be given by itself or with --domain."""
    if named and option and named != option:
        raise UsageProblem(f"either domain {named} or --domain {option}")
    return named or option


def confirm(verb: str, done: str, count: int, which: str) -> None:
    """Asks before `count` commands are changed; `done` is the participle of `verb`. Without a
    terminal there is no answer to wait for."""
    if not count:
        return
    if not sys.stdin.isatty():
        raise UsageProblem(
            f"{count_of(count)} would be {done}, and there is no terminal to ask at: add --yes if "
            f"that is meant"
        )
    click.confirm(f"{verb} {count_of(count)} ({which})?", abort=True, err=True)


json_option = option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def ignored_options(*names: str) -> Callable[[Any], Any]:
    """Those that every command takes, for one that has no use for them."""
    text = "No effect here: every command takes it."
    return stacked(*(option(n, metavar="TEXT", expose_value=False, help=text) for n in names))


def with_bus(command: Callable[..., Shown]) -> Any:
    """Gives a command the bus as its first argument, and shows its result."""

    @database_options
    @json_option
    @ignored_options("--name", "--runtime-dir")
    @functools.wraps(command)
    def run(dsn: str | None, embedded: bool, schema: str, as_json: bool, **arguments: Any) -> None:
        from cmdbus.database.sentences import in_one_sentence
        from cmdbus.producer.bus import CommandBus

        with (
            one_line_errors(),
            in_one_sentence(),
            database(dsn, embedded=embedded, schema=schema) as where,
            CommandBus(where, schema=schema) as bus,
        ):
            value, lines = command(bus, **arguments)
            if as_json:
                show_json(value)
            else:
                show_lines(lines)

    return run


named_argument = click.argument("named", metavar="NAME")


def add_change(
    group: click.Group,
    verb: str,
    operation: "Callable[[CommandBus], Callable[..., object]]",
    shown: "Callable[[CommandBus, str], Shown]",
    help_: str,
) -> None:
    """Adds a command to `group` that takes a name and an operator's remark, and shows afterwards
    what has the name."""

    def change(bus: "CommandBus", named: str, **remark: Any) -> Shown:
        operation(bus)(named, **remark)
        return shown(bus, named)

    group.command(verb, help=help_)(named_argument(audit_options(with_bus(change))))
