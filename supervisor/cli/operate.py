"""The operator's command, `cmdbus`. Each sub-command does its own imports.

Exit codes: 0 done, 1 it could not be done (one sentence on stderr), 2 usage.
"""

import os
import sys
from dataclasses import asdict
from typing import Any

import click

from cmdbus.logs import set_up_for_terminal
from cmdbus.supervisor.cli.batches import batch
from cmdbus.supervisor.cli.breakers import breaker
from cmdbus.supervisor.cli.bridges import bridge
from cmdbus.supervisor.cli.commands import cancel, get, reschedule, send
from cmdbus.supervisor.cli.configuration import WEB_SETTINGS, read
from cmdbus.supervisor.cli.domains import domain, pause, resume, status
from cmdbus.supervisor.cli.limits import limit_
from cmdbus.supervisor.cli.listing import list_
from cmdbus.supervisor.cli.managed_processes import process
from cmdbus.supervisor.cli.nodes import nodes
from cmdbus.supervisor.cli.options import RedactingGroup, database_options, option
from cmdbus.supervisor.cli.output import show_json, show_lines
from cmdbus.supervisor.cli.ps import ps
from cmdbus.supervisor.cli.schedules import schedule
from cmdbus.supervisor.cli.session import database, ignored_options, json_option, one_line_errors
from cmdbus.supervisor.cli.troubleshoot import tsq
from cmdbus.supervisor.cli.web import web

#: Kinds of roles that `init` grants rights to.
_KINDS = ("worker", "producer", "operator", "monitor")


@click.group(
    cls=RedactingGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Operate a cmdbus: a command bus on PostgreSQL.

    \b
    Exit codes: 0 done; 1 it could not be done, and stderr says why; 2 usage.
    """,
)
@click.version_option(package_name="cmdbus")
@click.pass_context
def main(context: click.Context) -> None:
    if os.environ.get("NO_COLOR"):
        context.color = False
    # Next to the supervisor's settings file, its database and its board are meant.
    options = {option.name or "": option for option in [*get.params, *ps.params, *web.params]}
    shared = ("dsn", "dsn_file", "embedded", "schema", "runtime_dir", "name", *WEB_SETTINGS)
    values = read(context, {name: options[name] for name in shared}, are_all=False)
    context.default_map = _for_all(main, values)
    set_up_for_terminal("info")


@main.command(
    context_settings={"ignore_unknown_options": True},
    help="""Check whether a supervisor could start here: app, database, timeouts, connections.

    Takes the options of cmdbus-supervise, its environment and its file; exits with 0 or 3.

    \b
    Examples:
      cmdbus check --app shop.handlers:registry --dsn-file /etc/shop/dsn --procs 4
      cmdbus check --json
    """,
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@json_option
def check(options: tuple[str, ...], as_json: bool) -> None:
    from cmdbus.supervisor.cli.supervise import main as supervise
    from cmdbus.supervisor.cli.supervise import run_check

    with supervise.make_context("cmdbus check", list(options)) as context:
        sys.exit(run_check(context, as_json=as_json))


@main.command(
    help="""Create the schema or upgrade it; safe to run again, and by many at once.

    \b
    Examples:
      cmdbus init --dsn postgresql://localhost/shop
      cmdbus init --dsn-file /etc/shop/dsn --producer web --worker fleet
    """,
)
@database_options
@option("--worker", metavar="ROLE", multiple=True, help="Grant ROLE a worker's rights.")
@option("--producer", metavar="ROLE", multiple=True, help="Grant ROLE a producer's rights.")
@option("--operator", metavar="ROLE", multiple=True, help="Grant ROLE an operator's rights.")
@option("--monitor", metavar="ROLE", multiple=True, help="Grant ROLE a monitor's rights.")
@json_option
@ignored_options("--name", "--runtime-dir")
def init(dsn: str | None, embedded: bool, schema: str, as_json: bool, **roles: Any) -> None:
    from cmdbus.database.schema import install
    from cmdbus.database.sentences import in_one_sentence

    with (
        one_line_errors(),
        in_one_sentence(),
        database(dsn, embedded=embedded, schema=None) as where,
    ):
        done = install(where, schema, grants=roles)
    granted = {kind: roles[kind] for kind in _KINDS if roles[kind]}
    if as_json:
        show_json({"schema": schema, **asdict(done), "grants": granted})
        return
    change = {0: "installed", done.after: "up to date"}.get(done.before, "upgraded")
    show_lines([f"schema {schema}: {change}, version {done.after}, in {done.database}"])
    for kind, names in granted.items():
        show_lines(f"{name}: has the rights of a role of kind {kind}" for name in names)


def _for_all(group: click.Group, values: dict[str, str | bool]) -> dict[str, Any]:
    return {
        name: _for_all(command, values) if isinstance(command, click.Group) else values
        for name, command in group.commands.items()
    }


for command in (
    *(send, get, list_, cancel, reschedule, status, domain, limit_, pause, resume, batch, tsq, ps),
    breaker,
    bridge,
    nodes,
):
    main.add_command(command)
main.add_command(process)
main.add_command(schedule)
main.add_command(web)
# Commands in the troubleshooting queue are shown like all others.
tsq.add_command(get, "show")
