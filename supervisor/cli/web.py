"""`cmdbus web`: the operators' page, in a process of its own."""

import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cmdbus.checks import check_operator
from cmdbus.printable import one_line
from cmdbus.supervisor.cli.options import database_options, login_name, option
from cmdbus.supervisor.cli.output import show_json, show_lines
from cmdbus.supervisor.cli.session import (
    UsageProblem,
    database,
    ignored_options,
    json_option,
    one_line_errors,
)
from cmdbus.supervisor.cli.values import address
from cmdbus.supervisor.host import address_text, bound

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.web.http.server import Server
    from cmdbus.web.security.access import Access

_BACKLOG = 512
#: Seconds for requests that run when the page is stopped.
_STOP_SECONDS = 1.0
_ROLES = ("operator", "viewer")
_TOKEN, _HEADER = "token", "header:"


def _auth(text: str) -> str:
    """As it was given, if it is one."""
    from cmdbus.web.security.access import check_header

    if text.startswith(_HEADER):
        return _HEADER + check_header(text.removeprefix(_HEADER))
    if text != _TOKEN:
        raise ValueError(f"it must be token, or like header:X-Forwarded-User, not {text!r}")
    return text


@click.command(
    help="""Show what the bus does in a browser, and let operators act there.

    It shows and changes what its database role may: an operator's role, or a monitor's, which
    sees no data (cmdbus init). Without --auth it is for the users and programs of this machine.

    --auth token: whoever knows the token signs in with it. It is made when it is first used,
    printed once, and kept in --token-file. The page itself speaks no TLS: beyond this machine,
    put it behind a proxy that does, or into a private network.

    --auth header:X-Forwarded-User: a proxy has signed the user in, and names the user in this
    header of each request. Whoever reaches the port past the proxy can be any user. So only the
    proxy may reach it, and the proxy must overwrite the header of what it forwards. The audit
    trail gets that name.

    \b
    Examples:
      cmdbus web --dsn-file /etc/shop/dsn
      cmdbus web --http 0.0.0.0:8080 --auth token
      cmdbus web --http :8081 --auth header:X-Forwarded-User --role viewer
    """,
)
@database_options
@option(
    "--http",
    "web_http",
    envvar="CMDBUS_WEB_HTTP",
    show_envvar=True,
    metavar="ADDRESS",
    parse=address,
    default="127.0.0.1:8080",
    help="Where it listens, as HOST:PORT or :PORT.",
)
@option(
    "--auth",
    "web_auth",
    envvar="CMDBUS_WEB_AUTH",
    show_envvar=True,
    metavar="token|header:NAME",
    parse=_auth,
    help="How the page knows its users. Needed where other machines can reach it.",
)
@option(
    "--token-file",
    "web_token_file",
    envvar="CMDBUS_WEB_TOKEN_FILE",
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False),
    show_default="web-token in the state directory of cmdbus",
    help="Where the token of --auth token is, which no other user may read.",
)
@option(
    "--role",
    "web_role",
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
    show_default="your login name, without --auth",
    help="Name for the audit trail, where the page knows no other.",
)
@json_option
@ignored_options("--name", "--runtime-dir")
def web(
    dsn: str | None,
    embedded: bool,
    schema: str,
    web_http: tuple[str, int],
    web_auth: str | None,
    web_token_file: Path | None,
    web_role: str,
    operator: str | None,
    as_json: bool,
) -> None:
    from cmdbus.database.dsn import with_defaults
    from cmdbus.producer.bus import CommandBus
    from cmdbus.web.http.server import Server
    from cmdbus.web.serving import DSN_DEFAULTS, WAIT_SECONDS, page, server_settings

    if web_token_file is not None and web_auth != _TOKEN:
        raise UsageProblem("--token-file is for --auth token")
    with (
        one_line_errors(),
        database(dsn, embedded=embedded, schema=schema) as where,
        ExitStack() as stack,
    ):
        named = with_defaults(where, **DSN_DEFAULTS)
        bus = stack.enter_context(CommandBus(named, schema=schema, timeout=WAIT_SECONDS))
        listener = stack.enter_context(bound(*web_http))
        check_reach(listener, web_auth)
        access, secret, notes = _access(web_auth, web_token_file, web_http[0])
        if operator is None and web_auth is None:
            operator = login_name()
        served = page(bus, access, role=web_role, secret=secret, operator=operator)
        stack.callback(served.close)
        listener.listen(_BACKLOG)
        server = Server(listener, served, server_settings(web_auth and web_auth.partition(":")[2]))
        url = f"http://{address_text(*server.address)}/"
        with _stopped_by_signals(server):
            if as_json:
                show_json(
                    {"url": url, "role": web_role, "auth": web_auth, "pid": os.getpid(), **notes}
                )
            else:
                show_lines(
                    [f"the operators' page is at {url}", *(f"{k}: {v}" for k, v in notes.items())]
                )
            threading.Thread(target=_report, args=[bus], name="web-report", daemon=True).start()
            server.run()


def check_reach(listener: socket.socket, auth: str | None) -> None:
    """Refuses a page that other machines can reach and that does not know its users."""
    host = listener.getsockname()[0]
    if auth is None and not ipaddress.ip_address(host).is_loopback:
        raise UsageProblem(
            f"other machines can reach {host}: say with --auth token or --auth header:NAME how "
            f"the page knows its users, or listen at 127.0.0.1"
        )


def _access(
    auth: str | None, token_file: Path | None, host: str
) -> "tuple[Access, bytes | None, dict[str, str]]":
    """With what is printed about it."""
    from cmdbus.web.security.token_file import default_path, read_or_make
    from cmdbus.web.serving import access_of

    if auth != _TOKEN:
        header = None if auth is None else auth.partition(":")[2]
        return *access_of(host=host, header=header), {}
    file = (token_file or default_path()).absolute()
    token, is_new = read_or_make(file)
    notes = {"token": token} if is_new else {}
    return *access_of(host=host, token=token), {**notes, "token file": str(file)}


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
