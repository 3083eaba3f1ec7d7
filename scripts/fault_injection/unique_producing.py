"""The way of a producer to send what is unique while it waits."""

import json
import random
import re

import psycopg

from fault_injection.drawing import Drawing, Limits
from fault_injection.flow_drawing import draw_id
from fault_injection.group_producing import transaction
from fault_injection.handlers import DOMAIN
from fault_injection.journal import Journal
from fault_injection.lanes import LANES
from fault_injection.steering import UNSURE

_KEYS = 12
#: Types that have limits, and what they do.
_LIMITED = {"Three": "Io", "One": "Noop", "Fair": "Transient"}
_KINDS = ("Io", "Noop", "Transient", "Permanent")
_PRIORITIES = {"high": 0, "normal": 5, "low": 10}
#: "finished", "started", or for how many seconds the key is held.
_UNTIL = ("finished", "finished", "finished", "started", "0.5", "2")
_CONFLICTS = ("reject", "existing", "replace")
_DELAYED, _EXPIRING = 0.2, 0.2
_SEND = """
SELECT cmdbus.send(
    %(domain)s, %(type)s, %(data)s::jsonb, %(id)s, %(priority)s, make_interval(secs => %(delay)s),
    p_unique => %(unique)s, p_on_conflict => %(on_conflict)s, p_unique_until => %(until)s,
    p_expires => make_interval(secs => %(expires)s))"""
_HOLDER = re.compile(r"command (\S+) of domain \S+ has the unique key")


class UniqueProducer:
    """Sends by SQL, as an application in another language does."""

    def __init__(
        self, name: str, dice: random.Random, limits: Limits, dsn: str, journal: Journal
    ) -> None:
        self._dice, self._dsn, self._journal = dice, dsn, journal
        self._drawing = Drawing(dice, limits)

    def send(self, call: str) -> None:
        values = self._draw(call)
        id_, unique = values["id"], f"{values['domain']} {values['unique']}"
        self._journal.write("invoke", call, way="unique", count=1, ids=[id_], unique=unique)
        try:
            with transaction(self._dsn) as connection:
                [(sent,)] = connection.execute(_SEND, values).fetchall()
        except psycopg.errors.UniqueViolation as error:
            match = _HOLDER.search(str(error))
            self._journal.write("fail", call, held_by=match[1] if match else str(error))
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            if sent == id_:
                self._journal.write("ok", call)
            else:
                self._journal.write("fail", call, held_by=sent)

    def _draw(self, call: str) -> dict[str, object]:
        dice = self._dice
        domain = dice.choice((DOMAIN, LANES))
        type_ = dice.choice(_KINDS if domain == DOMAIN else [*_LIMITED])
        kind = _LIMITED.get(type_, type_)
        until = dice.choice(_UNTIL)
        delay = round(dice.uniform(0.1, 2.0), 2) if dice.random() < _DELAYED else None
        expires = None
        if dice.random() < _EXPIRING:
            expires = round((delay or 0.0) + dice.uniform(0.1, 2.0), 2)
        drawn = self._drawing.of_type(kind, call, 0, delay=delay)
        data = {**drawn.data, "does": kind, "unique_until": until}
        return {
            "domain": domain,
            "type": type_,
            "data": json.dumps(data),
            "id": draw_id(dice),
            "priority": dice.choice([*_PRIORITIES.values()]),
            "delay": delay,
            "unique": f"u{dice.randrange(_KEYS)}",
            "on_conflict": dice.choice(_CONFLICTS),
            "until": until,
            "expires": expires,
        }
