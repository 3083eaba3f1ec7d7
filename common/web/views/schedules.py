"""The view `schedules`."""

from cmdbus.producer.bus import CommandBus
from cmdbus.web.query import NotFound, Query


def read(bus: CommandBus, query: Query) -> object:
    raise NotFound("this view is not here yet")
