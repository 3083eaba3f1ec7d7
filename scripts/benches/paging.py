"""What a page of commands costs, however many there are."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from time import perf_counter

import psycopg
from psycopg.sql import SQL, Identifier

from benches.comparison import Comparison, Found, Place
from benches.fleet import DOMAIN, TYPE
from cmdbus.database import schema
from cmdbus.producer.bus import CommandBus
from cmdbus.web import application
from cmdbus.web.http.server import Server
from cmdbus.web.query import parse_view
from cmdbus.web.view import read
from cmdbus.web.views import VIEWS

#: Of --commands: those that have finished, in the larger schema; a tenth as many wait.
_FINISHED_TIMES = 25
_FEW_PART, _WAITING_PART = 100, 10
_LIMIT, _CALLS = 100, 20
#: Pages before that in the history, of the larger schema.
_PAGES = 400
_BOUND_MS = 50.0
#: Ids as the bus makes them, whose commands have finished on some days, and wait in two tables.
_FILL = """
CREATE TEMP TABLE made AS
SELECT n, now() + (n - {count}) * interval '10 ms' AS created_at,
    (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint + n), 12, '0') || '8cb58000'
        || lpad(to_hex(n), 12, '0'))::uuid AS id
FROM generate_series(1, {count} + {count} / {part}) n;
INSERT INTO {schema}.finished (token, created_at, claimed_at, finished_at, command_id,
    correlation_id, priority, attempts, losses, domain, type, status, data)
SELECT 1, created_at, created_at, now() + 7 * n / ({count} + 1) * interval '1 day', id, id, 5, 1, 0,
    {domain} || n % 10, {type}, CASE n % 50 WHEN 0 THEN 'FAILED' ELSE 'COMPLETED' END,
    json_build_object('customer', n)
FROM made WHERE n <= {count};
INSERT INTO {schema}.ready (created_at, command_id, correlation_id, priority, domain, type, data)
SELECT created_at, id, id, n % 3, {domain} || n % 10, {type}, '1'
FROM made WHERE n > {count} AND n % 2 = 0 ORDER BY n;
INSERT INTO {schema}.scheduled (created_at, due_at, command_id, correlation_id, priority, domain,
    type, data)
SELECT created_at, created_at + interval '1 hour', id, id, n % 3, {domain} || n % 10, {type}, '1'
FROM made WHERE n > {count} AND n % 2 = 1;
DROP TABLE made"""
_ANALYZE = "VACUUM ANALYZE {schema}.finished, {schema}.ready, {schema}.scheduled"


def page(slot: Place) -> Found:
    """Of 10^6 commands that have finished (--commands x 25) and 10^5 that wait, the newest 100,
    those behind half of what waits, those behind 40,000 of the history, and the overview, each over
    the same of 10^4, 10^3 and 400; and the first byte of the page over a socket, against 50 ms."""
    many = slot.sizes.commands * _FINISHED_TIMES
    few = max(_FEW_PART, many // _FEW_PART)
    with ExitStack() as stack:
        buses = [
            stack.enter_context(_filled(slot, name, count))
            for name, count in (("few", few), ("many", many))
        ]
        views: dict[str, list[Callable[[], object]]] = {
            "page-first": [partial(bus.search, limit=_LIMIT) for bus in buses],
            "page-deep": [
                partial(bus.search, limit=_LIMIT, after=_deep(bus, count // (20 * _LIMIT)))
                for bus, count in zip(buses, (few, many), strict=True)
            ],
            "page-history": [
                partial(bus.search, status="COMPLETED", limit=_LIMIT, after=after)
                for bus, pages in zip(buses, (_PAGES // _FEW_PART, _PAGES), strict=True)
                for after in [_deep(bus, pages, status="COMPLETED")]
            ],
            "page-overview": [partial(_read, bus, "overview") for bus in buses],
        }
        pairs = {
            name: slot.rounds(*(partial(_ms, view) for view in sides))
            for name, sides in views.items()
        }
        connect = stack.enter_context(_served(buses[-1]))
        bytes_ms = [(_BOUND_MS, _ms(connect)) for _ in range(slot.sizes.rounds)]
    configuration = {"finished": [few, many], "waiting": [few // 10, many // 10], "limit": _LIMIT}
    found = {
        name: Comparison(
            pairs=[(one, two) for one, two in each], configuration=configuration, less=True
        )
        for name, each in pairs.items()
    }
    first_byte = Comparison(pairs=bytes_ms, configuration=configuration, less=True)
    return {**found, "page-first-byte": first_byte}


def fill(connection: psycopg.Connection, name: str, count: int) -> None:
    """Puts so many commands into the history of a schema, and a tenth as many in front of it."""
    values = {"schema": Identifier(name), "domain": DOMAIN, "type": TYPE, "part": _WAITING_PART}
    connection.execute(SQL(_FILL).format(**values, count=count))


@contextmanager
def _filled(slot: Place, name: str, count: int) -> Iterator[CommandBus]:
    schema.install(slot.dsn, name)
    with slot.connect() as connection:
        fill(connection, name, count)
        connection.execute(SQL(_ANALYZE).format(schema=Identifier(name)))
    with CommandBus(slot.dsn, schema=name) as bus:
        yield bus


def _deep(bus: CommandBus, pages: int, status: str | None = None) -> str | None:
    """The cursor behind so many pages."""
    after = None
    for _ in range(pages):
        after = bus.search(status=status, limit=_LIMIT, after=after).next or after
    return after


def _read(bus: CommandBus, path: str) -> str:
    name, query = parse_view(path)
    return json.dumps(read(bus, VIEWS, name, query), default=str)


def _ms(work: Callable[[], object]) -> float:
    """The median of some calls, after one that is not counted."""
    work()
    times = []
    for _ in range(_CALLS):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return 1000 * median(times)


@contextmanager
def _served(bus: CommandBus) -> Iterator[Callable[[], object]]:
    """Asks for the document of the page on a new connection, up to its first byte."""
    app = application(bus)
    server = Server(socket.create_server(("127.0.0.1", 0)), app)
    server.start()
    host, port = server.address[:2]

    def ask() -> None:
        connection = http.client.HTTPConnection(host, port)
        connection.request("GET", "/")
        assert connection.getresponse().read(1)
        connection.close()

    try:
        yield ask
    finally:
        server.stop()
        app.close()
