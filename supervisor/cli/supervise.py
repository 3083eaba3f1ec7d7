"""`cmdbus-supervise`: reads the settings, then checks them or runs the fleet."""

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import NoReturn

import click
from click.core import ParameterSource

from cmdbus.errors import CmdbusError
from cmdbus.exits import Exit
from cmdbus.logs import set_up_for_terminal
from cmdbus.printable import hanging, one_line
from cmdbus.readiness import Finding, worst
from cmdbus.supervisor.cli.configuration import configured, entries, mistyped_variables, read
from cmdbus.supervisor.cli.options import RedactingCommand
from cmdbus.supervisor.cli.session import database
from cmdbus.supervisor.cli.setting import setting_options
from cmdbus.supervisor.host import check_host
from cmdbus.supervisor.preflight_process import run_preflight
from cmdbus.supervisor.runtime import working_directory
from cmdbus.supervisor.signals import NOTED

#: The application of the demo, which runs if neither an app nor a database is named.
DEMO_APP = "cmdbus.worker.demo:registry"


class _Command(RedactingCommand):
    """Takes from the settings file what neither an option nor the environment gives."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not {"-h", "--help", "--version"} & set(args):
            with _can_start():
                working_directory()  # settings and the application are read from it
            ctx.default_map = read(ctx, {p.name or "": p for p in self.params if p.expose_value})
        return super().parse_args(ctx, args)


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
      cmdbus-supervise --procs 4 --threads 2:32
      cmdbus-supervise --app shop.handlers:registry --dsn-file /etc/shop/dsn --http :8080
      cmdbus-supervise --app shop.handlers:registry --embedded --check
      cmdbus-supervise --app shop.handlers:registry --embedded --reload
    """,
)
@click.version_option(package_name="cmdbus")
@setting_options
@click.pass_context
def main(context: click.Context, /, check: bool, **_given: object) -> None:
    if check:
        if context.get_parameter_source("reload") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--reload is for a fleet that runs, and --check starts none")
        sys.exit(run_check(context, as_json=False))
    with _can_start():
        settings = configured(context)
    if settings.reload and settings.app is None:
        raise click.UsageError("--reload watches the files of an app: name it with --app")
    if settings.app is None and settings.dsn is None:
        _become_demo()
    _warn_of_variables(context)
    from cmdbus.supervisor.loop import supervise

    sys.exit(supervise(settings))


def _warn_of_variables(context: click.Context) -> None:
    for sentence in mistyped_variables(context):
        click.echo(f"Warning: {one_line(sentence)}", err=True)


def _become_demo() -> NoReturn:
    """The demo reads the same arguments and runs an ordinary supervisor as its child. Signals wait
    until it has its handlers: Ctrl-C would interrupt its imports."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTED)
    program = [sys.executable, "-P", "-m", "cmdbus.worker.demo.program"]
    os.execv(sys.executable, [*program, *sys.argv[1:]])


def run_check(context: click.Context, *, as_json: bool) -> Exit:
    with _can_start():
        settings, shown = configured(context), list(entries(context))
        _warn_of_variables(context)
        set_up_for_terminal(settings.log_level)
        if not as_json:
            _show((entry.name, str(entry)) for entry in shown)
            click.echo()
        app = settings.app if settings.dsn is not None else settings.app or DEMO_APP
        with database(settings.dsn, embedded=True, schema=settings.schema) as dsn:
            settings = replace(settings, app=app, dsn=dsn)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would keep no exit status
            checks = [*check_host(settings), *run_preflight(settings)]
    if as_json:
        found = {"settings": [*map(asdict, shown)], "checks": [each.to_dict() for each in checks]}
        click.echo(json.dumps(found))
    else:
        _show((each.finding, str(each)) for each in checks)
    return Exit.DONE if worst(checks) in (Finding.OK, Finding.WARNING) else Exit.CANNOT_START


@contextmanager
def _can_start() -> Iterator[None]:
    try:
        yield
    except CmdbusError as error:
        click.echo(f"Error: {one_line(str(error))}", err=True)
        sys.exit(Exit.CANNOT_START)


def _show(pairs: Iterable[tuple[str, str]]) -> None:
    rows = list(pairs)
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo("\n".join(hanging(f"{name:{width}}  {text}", "    ")))


if __name__ == "__main__":
    main()
