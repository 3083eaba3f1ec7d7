"""The pages and their paths: for a steward with a socket, and for a start before the steward."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from socket import socket
from threading import Thread

from cmdbus.board.board import Board, Node
from cmdbus.clock import time
from cmdbus.database import dsn as dsns
from cmdbus.settings import Settings
from cmdbus.worker.claims.claim import Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.pools import complete, session_settings
from cmdbus.worker.probes import exposition
from cmdbus.worker.probes import responses as answers
from cmdbus.worker.probes.database import DepthGauge, Reachability
from cmdbus.worker.probes.http import Server
from cmdbus.worker.probes.responses import Gauges, Response

#: Seconds for the count, which takes 0.2 for a million commands.
_STATEMENT_SECONDS = 2.0
_STOP_SECONDS = 1.0
_LOOK_SECONDS = 1.0


def _answer(
    board: Board, gauge: DepthGauge | None, reachability: Reachability | None, path: str
) -> Response | None:
    """The page at this path, if there is one, from the board and answers of the database."""
    view, now = board.snapshot(claims=False), time.monotonic_ns()
    match path:
        case "/livez":
            return answers.live(view, now)
        case "/readyz":
            return answers.ready(view, now, away=reachability.is_away if reachability else None)
        case "/status" | "/metrics":
            gauges = gauge.read() if gauge else Gauges()
            if path == "/status":
                return answers.status(view, board.counters(), gauges.depths, now)
            page = exposition.render(view, board.counters(), gauges)
            return Response(200, page, exposition.CONTENT_TYPE)
    return None


@contextmanager
def serving(settings: Settings, node: Node) -> Iterator[Sequence[Thread]]:
    """Answers requests, if there is a socket; yields the threads that do."""
    if node.http is None or settings.http is None:
        yield ()
        return
    statements = ClaimStatements(settings.schema, settings.timeouts.lease)
    gauge = DepthGauge(lambda: _connect(settings, statements.application_name), statements)
    reachability = Reachability(
        lambda: _connect_to_writable(settings, statements.application_name), settings.schema
    )
    site = partial(_answer, node.board, gauge, reachability)
    server = Server(node.http, site, host=settings.http[0])
    parts = (server, gauge, reachability)
    for part in parts:
        part.start()
    try:
        yield [part.thread for part in parts]
    finally:
        for part in parts:
            part.stop(_STOP_SECONDS)


def serve_startup_probes(settings: Settings, board: Board, listener: socket) -> None:
    """Before there is a steward, until the parent of this process or the server's thread ends."""
    assert settings.http is not None
    server = Server(listener, partial(_answer, board, None, None), host=settings.http[0])
    server.start()
    parent = os.getppid()
    while os.getppid() == parent and server.thread.is_alive():
        time.sleep(_LOOK_SECONDS)


def _connect(settings: Settings, application_name: str) -> Connection:
    limits = {
        **session_settings(settings.timeouts),
        "statement_timeout": f"{min(_STATEMENT_SECONDS, settings.timeouts.statement):g}s",
        "default_transaction_read_only": "on",
    }
    parts = dsns.parse(settings.dsn or "")
    parts = dsns.complete(parts, application_name=application_name, settings=limits)
    if parts["target_session_attrs"] == "read-write":
        # The setting above makes each of its sessions read-only.
        parts["target_session_attrs"] = "primary"
    return dsns.connect(parts)


def _connect_to_writable(settings: Settings, application_name: str) -> Connection:
    parts = dsns.parse(settings.dsn or "")
    return dsns.connect(complete(parts, application_name, settings.timeouts))
