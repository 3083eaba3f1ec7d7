"""What a fleet feels of an open page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from benches.comparison import Found, Place
from benches.fleet import TYPE, Fleet, fleet, nothing
from benches.yard import Drained, Yard, commands, part, rates_and_cpu, yard
from cmdbus.web import application

_PROCESSES, _THREADS = 2, 8
#: Of --commands: for some publications in a drain.
_TIMES = 3.75
_FORGET = "DELETE FROM cmdbus.fleet_watch"
_NOW = "SELECT clock_timestamp()"
_NOT_PUBLISHED_SINCE = "SELECT FROM cmdbus.published_node WHERE published_at < %(at)s"


def drain_watched(slot: Place) -> Found:
    """The drain by 2 x 8 while a page shows the overview and the fleet, live, against the same
    drain without a page. CPU is that of the fleet and all backends for a command, those of the page
    included."""
    requests = commands(int(slot.sizes.commands * _TIMES))
    with (
        yard(slot) as here,
        fleet(slot.dsn, {TYPE: nothing}, processes=_PROCESSES, threads=_THREADS) as running,
    ):

        def alone(seconds: float) -> Drained:
            here.connection.execute(_FORGET)
            _await_publication(here, running)  # The fleet learns of it then.
            return here.drain(running, part(slot, requests, seconds))

        def watched(seconds: float) -> Drained:
            with _page(here):
                _await_publication(here, running)
                return here.drain(running, part(slot, requests, seconds))

        watched(slot.sizes.seconds / 10)  # Else the first round alone waits for a minute.
        pairs = slot.alternate(alone, watched)
    configuration = {"commands": len(requests), "processes": _PROCESSES, "threads": _THREADS}
    return rates_and_cpu("drain-watched", pairs, **configuration)


def _await_publication(here: Yard, running: Fleet) -> None:
    here.await_none(_NOT_PUBLISHED_SINCE, at=here.value(_NOW), check=running.check)


@contextmanager
def _page(here: Yard) -> Iterator[None]:
    """The live stream of a page, as its server serves it."""
    app = application(here.bus)
    request: dict[str, Any] = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/api/live",
        "QUERY_STRING": "view=overview&view=fleet",
        "HTTP_HOST": "localhost",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.url_scheme": "http",
        "wsgi.multithread": True,
        "wsgi.input": BytesIO(),
    }
    events = app(request, lambda status, headers: None)
    reader = threading.Thread(target=lambda: [None for _ in events])
    reader.start()
    try:
        yield
    finally:
        app.close()
        reader.join()
