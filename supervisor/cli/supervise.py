"""`cmdbus-supervise`: what a fleet of workers is told, and then the fleet itself."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from cmdbus.errors import CmdbusError
from cmdbus.exits import Exit
from cmdbus.logs import set_up_for_terminal
from cmdbus.printable import hanging, one_line
from cmdbus.proc import usable_cpus
from cmdbus.readiness import Finding, worst
from cmdbus.settings import Settings
from cmdbus.supervisor.cli.configuration import configured, read
from cmdbus.supervisor.cli.options import RedactingCommand, database_options
from cmdbus.supervisor.cli.values import (
    address,
    domain,
    payload_size,
    poll_seconds,
    seconds,
    size,
    whole,
)
from cmdbus.supervisor.embedded_schema import install_embedded
from cmdbus.supervisor.preflight_process import run_preflight
from cmdbus.supervisor.runtime import check_supervisor_name
from cmdbus.supervisor.vacancy import check_host
from cmdbus.timeouts import Timeouts

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = Timeouts()
_MOST_PROCS, _MOST_THREADS = 512, 128
_MAX_JITTER_MS = 10


class _Command(RedactingCommand):
    """Takes from the file what neither options nor the environment say."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not {"-h", "--help", "--version"} & set(args):
            _check_working_directory()
            ctx.default_map = read(ctx)
        return super().parse_args(ctx, args)


class _NowhereError(click.ClickException):
    """The working directory was removed."""

    exit_code = Exit.CANNOT_START


def _check_working_directory() -> None:
    """Settings are read from there, and the application is imported from there."""
    try:
        Path.cwd()
    except OSError as error:
        raise _NowhereError(
            f"the working directory of this process is gone ({error.strerror}): change to one "
            f"that exists"
        ) from None


def _option(
    name: str, parse: Callable[[str], Any] | None = None, *, off: bool = False, **more: Any
) -> Callable[[F], F]:
    """An option with its variable; `parse` makes its value of text, and `off` is None."""
    variable = "CMDBUS_" + name.removeprefix("--").upper().replace("-", "_")
    if off:
        more.setdefault("show_default", "off")
    if parse is not None:
        more["callback"] = _parsed(parse, off)
    return click.option(name, envvar=variable, show_envvar=True, **more)


def _parsed(
    parse: Callable[[str], Any], off: bool
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(context: click.Context, parameter: click.Parameter, text: Any) -> Any:
        if text is None or (off and text.lower() == "off"):
            return None
        try:
            return tuple(map(parse, text)) if isinstance(text, tuple) else parse(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}.", context, parameter) from None

    return callback


def _seconds(name: str, default: float, text: str) -> Callable[[F], F]:
    more: Any = {"default": f"{default:g}", "show_default": True, "metavar": "TIME"}
    return _option(name, seconds, help=text, **more)


@click.command(
    cls=_Command,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Run the commands of a bus with a fleet of processes that heals itself.

    Every option can also be set by the environment, or in [tool.cmdbus] of pyproject.toml or
    in cmdbus.toml of the working directory (procs = 4, max-rss = "512M", domain = ["payments"]).
    A TIME is seconds, or like 500ms, 30s, 5m, 2h, 1d.

    \b
    Examples:
      cmdbus-supervise --procs 4 --threads 8
      cmdbus-supervise --app shop.handlers:registry --dsn-file /etc/shop/dsn --http :8080
      cmdbus-supervise --app shop.handlers:registry --embedded --check
    """,
)
@click.version_option(package_name="cmdbus")
@_option(
    "--app",
    metavar="MODULE:REGISTRY",
    help="The handlers; the working directory is importable. Without one: a demo.",
)
@database_options
@_option(
    "--procs",
    partial(whole, most=_MOST_PROCS),
    metavar="N",
    default=lambda: str(usable_cpus()),
    show_default="number of CPUs",
    help="Worker processes.",
)
@_option(
    "--threads",
    partial(whole, most=_MOST_THREADS),
    metavar="N",
    default="8",
    show_default=True,
    help="Threads, and database connections, in each.",
)
@_option(
    "--domain",
    domain,
    multiple=True,
    metavar="NAME",
    help="Run this domain; repeatable. Without: all that the app handles.",
)
@_seconds("--statement-timeout", _DEFAULTS.statement, "For one SQL statement.")
@_seconds("--pool-timeout", _DEFAULTS.pool, "To wait for a connection.")
@_seconds(
    "--visibility-timeout",
    _DEFAULTS.lease,
    "After it the commands of a worker that is gone are run again.",
)
@_seconds("--thread-timeout", _DEFAULTS.thread, "For one execution of a handler.")
@_seconds("--watchdog-timeout", _DEFAULTS.watchdog, "After it a hung process is replaced.")
@_option(
    "--poll-interval",
    poll_seconds,
    metavar="TIME",
    show_default="60; 1 with --wake poll",
    help="Between two polls without a notification.",
)
@_option(
    "--wake",
    type=click.Choice(["notify", "poll"]),
    default="notify",
    show_default=True,
    help="poll: for a pooler that cannot LISTEN.",
)
@_option(
    "--wake-jitter",
    partial(whole, least=0, most=_MAX_JITTER_MS),
    default="0",
    show_default=True,
    metavar="MS",
    help="Random pause after a wake, against many nodes asking at once.",
)
@_seconds("--drain-timeout", 30.0, "For running commands to end at a stop.")
@_option(
    "--claim-bytes",
    payload_size,
    metavar="SIZE",
    default="8M",
    show_default=True,
    help="Payload that a process claims ahead of its threads; a larger command comes alone.",
)
@_option(
    "--max-commands",
    whole,
    off=True,
    metavar="N",
    help="Replace a process after so many commands.",
)
@_option(
    "--max-rss",
    size,
    off=True,
    metavar="SIZE",
    help="Replace a process that has more memory, for example 512M.",
)
@_option(
    "--max-age",
    seconds,
    off=True,
    metavar="TIME",
    help="Replace a process of this age.",
)
@_option(
    "--http",
    address,
    off=True,
    metavar="HOST:PORT",
    help="Serve /livez, /readyz, /metrics and /status; :PORT means 127.0.0.1.",
)
@_option(
    "--name",
    check_supervisor_name,
    metavar="NAME",
    default="cmdbus",
    show_default=True,
    help="Tells several supervisors of one host apart.",
)
@_option(
    "--runtime-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    callback=lambda _context, _parameter, path: path and path.absolute(),
    help="For the board, the pidfile and stack dumps.",
)
@_option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@_option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@_option("--check", is_flag=True, help="Only check whether it could start: exit 0 or 3.")
@_option("--drain", is_flag=True, help="Exit 0 when nothing runs and nothing is claimable.")
@click.pass_context
def main(context: click.Context, /, check: bool, **_given: object) -> None:
    if check:
        sys.exit(run_check(context, as_json=False))
    with _can_start():
        configured_settings = configured(context)
    from cmdbus.supervisor.supervise import supervise

    sys.exit(supervise(configured_settings.settings))


def run_check(context: click.Context, *, as_json: bool) -> Exit:
    """What --check and `cmdbus check` print."""
    with _can_start():
        configured_settings = configured(context)
        set_up_for_terminal(configured_settings.settings.log_level)
        if not as_json:
            _show(
                [
                    (entry.name, f"{entry.value}  ({entry.source})")
                    for entry in configured_settings.entries
                ]
            )
            click.echo()
        with _database(configured_settings.settings.with_demo()) as settings:
            checks = [*check_host(settings), *run_preflight(settings)]
    if as_json:
        entries = [entry.to_dict() for entry in configured_settings.entries]
        found = {"settings": entries, "checks": [check.to_dict() for check in checks]}
        click.echo(json.dumps(found))
    else:
        _show([(each.finding, str(each)) for each in checks])
    return Exit.DONE if worst(checks) in (Finding.OK, Finding.WARNING) else Exit.CANNOT_START


@contextmanager
def _can_start() -> Iterator[None]:
    try:
        yield
    except CmdbusError as error:
        click.echo(f"Error: {one_line(str(error))}", err=True)
        sys.exit(Exit.CANNOT_START)


@contextmanager
def _database(settings: Settings) -> Iterator[Settings]:
    """With the DSN to look at; without one the embedded server runs meanwhile, and gets its
    schema, as it would from a supervisor."""
    if settings.dsn is not None:
        yield settings
        return
    from cmdbus.embedded import EmbeddedPostgres

    with EmbeddedPostgres() as server:
        install_embedded(server.dsn, settings.schema, server.directory)
        yield replace(settings, dsn=server.dsn)


def _show(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo("\n".join(hanging(f"{name:{width}}  {text}", "    ")))
