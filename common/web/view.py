"""What the page shows: functions of a bus and a query that return a value for JSON."""

from collections.abc import Callable, Mapping

from cmdbus.producer.bus import CommandBus
from cmdbus.web.query import NotFound, Query, parse_view

#: Reads and changes nothing. What it returns is encoded by json_values.
View = Callable[[CommandBus, Query], object]
#: By the first segment of their paths.
Views = Mapping[str, View]


def read(bus: CommandBus, views: Views, name: str, query: Query) -> object:
    view = views.get(name)
    if view is None:
        raise NotFound(f"there is no view {name!r}")
    value = view(bus, query)
    query.check()
    return value


def read_path(bus: CommandBus, views: Views, path: str) -> object:
    """By its path with its query, as the page names it in its subscriptions."""
    name, query = parse_view(path)
    return read(bus, views, name, query)
