"""Lets nodes publish often while a page shows them: renewed by each reading of such a view, at most
every few seconds for each bus, and over when no page has read one for a while."""

from threading import Lock
from weakref import WeakKeyDictionary

from cmdbus.clock import time
from cmdbus.producer.bus import CommandBus
from cmdbus.web.failures import failure

#: Seconds for which one call lets nodes publish often, and from one call to the next.
WATCH_SECONDS, _RENEWAL_SECONDS = 10.0, 3.0

_renewed: WeakKeyDictionary[CommandBus, float] = WeakKeyDictionary()
_lock = Lock()


def watch_fleet(bus: CommandBus) -> None:
    """A role without this right, or a read-only server, is no error: its figures are older.
    A database that is away is one: what is read next would wait for it again."""
    now = time.monotonic()
    with _lock:
        if now < _renewed.get(bus, float("-inf")) + _RENEWAL_SECONDS:
            return
        _renewed[bus] = now
    try:
        bus.watch_fleet(WATCH_SECONDS)
    except Exception as error:
        found = failure(error)
        if found is None or found[1].get("away"):
            raise
