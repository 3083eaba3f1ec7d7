"""The view `payload`: data, result or checkpoint of a command as a whole, or the details of an
event of its audit trail. Its path is DOMAIN/ID/data, or DOMAIN/ID/event/NUMBER."""

from cmdbus.checks import check_name
from cmdbus.errors import CommandNotFoundError
from cmdbus.producer.bus import CommandBus
from cmdbus.web.query import BadQuery, NotFound, Query
from cmdbus.web.views.payload_values import WHOLE, payload_of

_PAYLOADS = ("data", "result", "checkpoint")


def read(bus: CommandBus, query: Query) -> object:
    domain = check_name("domain", query.part(0, "the domain"))
    command_id = query.uuid_part(1, "the id")
    what = query.part(2, "what is asked for")
    if what == "event":
        number = query.part(3, "the number of the event")
        audit = bus.audit(domain, command_id)
        if not number.isascii() or not number.isdecimal() or int(number[:9]) >= len(audit):
            raise NotFound(f"the audit trail has no event {number[:20]!r}")
        return payload_of(audit[int(number)].details, WHOLE)
    if what not in _PAYLOADS:
        raise BadQuery(f"a command has {', '.join(_PAYLOADS)} and events, and not {what[:40]!r}")
    record = bus.get(domain, command_id)
    if record is None:
        raise CommandNotFoundError(domain, command_id)
    return payload_of(getattr(record, what), WHOLE)
