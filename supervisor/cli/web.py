"""`cmdbus web`: the operators' page, in a process of its own."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cmdbus.checks import check_operator
from cmdbus.printable import one_line
from cmdbus.supervisor.cli.options import database_options, login_name, option
from cmdbus.supervisor.cli.output import show_json, show_lines
from cmdbus.supervisor.cli.session import database, ignored_options, json_option, one_line_errors
from cmdbus.supervisor.cli.values import address
from cmdbus.supervisor.host import address_text, bound

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.web.http.server import Server

#: Of the page's sessions in pg_stat_activity.
_APPLICATION_NAME = "cmdbus:web"
#: What one view may take of the server.
_SETTINGS = {"statement_timeout": "10s", "idle_in_transaction_session_timeout": "10s"}
_BACKLOG = 512
#: Seconds for requests that run when the page is stopped.
_STOP_SECONDS = 1.0
_ROLES = ("operator", "viewer")


@click.command(
    help="""Show what the bus does in a browser, and let operators act there.

    \b
    Examples:
      cmdbus web --dsn-file /etc/shop/dsn
      cmdbus web --http :8081 --role viewer
    """,
)
@database_options
@option(
    "--http",
    "listen_at",
    envvar="CMDBUS_WEB_HTTP",
    show_envvar=True,
    metavar="ADDRESS",
    parse=address,
    default="127.0.0.1:8080",
    help="Where it listens, as HOST:PORT or :PORT.",
)
@option(
    "--role",
    envvar="CMDBUS_WEB_ROLE",
    show_envvar=True,
    type=click.Choice(_ROLES),
    default="operator",
    help="What those who use the page may do: a viewer changes nothing.",
)
@option(
    "--operator",
    has_variable=True,
    metavar="NAME",
    parse=check_operator,
    default=login_name,
    show_default="your login name",
    help="Name for the audit trail, where the page knows no other.",
)
@json_option
@ignored_options("--name", "--runtime-dir")
def web(
    dsn: str | None,
    embedded: bool,
    schema: str,
    listen_at: tuple[str, int],
    role: str,
    operator: str,
    as_json: bool,
) -> None:
    from cmdbus.database.dsn import with_defaults
    from cmdbus.producer.bus import CommandBus
    from cmdbus.web import application
    from cmdbus.web.http.server import Server

    with (
        one_line_errors(),
        database(dsn, embedded=embedded, schema=schema) as where,
        ExitStack() as stack,
    ):
        named = with_defaults(where, application_name=_APPLICATION_NAME, settings=_SETTINGS)
        bus = stack.enter_context(CommandBus(named, schema=schema))
        page = application(bus, role=role, operator=operator)
        stack.callback(page.close)
        server = Server(bound(*listen_at, backlog=_BACKLOG), page)
        url = f"http://{address_text(*server.address)}/"
        with _stopped_by_signals(server):
            if as_json:
                show_json({"url": url, "role": role, "pid": os.getpid()})
            else:
                show_lines([f"the operators' page is at {url}"])
            threading.Thread(target=_report, args=[bus], name="web-report", daemon=True).start()
            server.run()


@contextmanager
def _stopped_by_signals(server: "Server") -> Iterator[None]:
    def stop(*_: object) -> None:
        server.ask_to_stop(_STOP_SECONDS)

    names = (signal.SIGTERM, signal.SIGINT)
    before = {name: signal.signal(name, stop) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _report(bus: "CommandBus") -> None:
    """Says at the start what keeps the page from showing anything, which it also shows itself."""
    try:
        bus.rights()
    except Exception as error:
        warn: Any = partial(click.echo, err=True)
        warn(f"the page shows nothing yet: {one_line(str(error))}")
