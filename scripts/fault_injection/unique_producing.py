"""The ways of a producer to send what is unique while it waits."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import psycopg

from cmdbus import CommandBus, DuplicateCommandError, SendRequest
from fault_injection.drawing import Drawing, Limits
from fault_injection.flow_drawing import draw_id
from fault_injection.group_producing import send_one, transaction
from fault_injection.handlers import DOMAIN
from fault_injection.journal import Journal
from fault_injection.lanes import LANES
from fault_injection.steering import UNSURE

_KEYS = 12
#: Types that have limits, and what they do.
_LIMITED = {"Three": "Io", "One": "Noop", "Fair": "Transient"}
_KINDS = ("Io", "Noop", "Transient", "Permanent")
_PRIORITIES = (0, 5, 10)
#: "finished", "started", or for how many seconds the key is held.
_UNTIL = ("finished", "finished", "finished", "started", 0.5, 2.0)
_CONFLICTS = ("reject", "existing", "replace")
_DELAYED, _EXPIRING = 0.2, 0.2
_BY_SQL, _MANY = 0.5, 0.2
_SEND = """
SELECT cmdbus.send(
    %(domain)s, %(type)s, %(data)s::jsonb, %(command_id)s, %(priority)s,
    make_interval(secs => %(delay)s), p_unique => %(unique)s, p_on_conflict => %(on_conflict)s,
    p_unique_until => %(unique_until)s, p_expires => make_interval(secs => %(expires)s),
    p_headers => %(headers)s::json)"""
_HOLDER = re.compile(r"command (\S+) of domain \S+ has the unique key")


class UniqueProducer:
    def __init__(
        self, name: str, dice: random.Random, limits: Limits, dsn: str, journal: Journal
    ) -> None:
        self._dice, self._dsn, self._journal = dice, dsn, journal
        self._drawing = Drawing(dice, limits)

    def send(self, bus: CommandBus, call: str) -> None:
        """By the bus, or by SQL, as an application in another language does."""
        if self._dice.random() < _MANY:
            self._send_many(bus, call)
            return
        request = self._request(call, 0, f"u{self._dice.randrange(_KEYS)}")
        by_sql = self._dice.random() < _BY_SQL
        self._try(
            call,
            [request],
            lambda: [self._by_sql(request) if by_sql else send_one(bus, request)],
        )

    def _send_many(self, bus: CommandBus, call: str) -> None:
        """All of them, or none."""
        keys = self._dice.sample(range(_KEYS), 2)
        requests = [
            replace(self._request(call, index, f"u{key}"), on_conflict="reject")
            for index, key in enumerate(keys)
        ]
        self._try(call, requests, lambda: bus.send_many(requests))

    def _try(
        self, call: str, requests: Sequence[SendRequest], send: Callable[[], Sequence[object]]
    ) -> None:
        ids = [request.command_id for request in requests]
        unique = f"{requests[0].domain} {requests[0].unique}"
        self._journal.write("invoke", call, way="unique", count=len(ids), ids=ids, unique=unique)
        try:
            sent = send()
        except DuplicateCommandError as error:
            unique = f"{error.domain} {error.unique}"
            self._journal.write("fail", call, held_by=error.command_id, unique=unique)
        except psycopg.errors.UniqueViolation as error:
            match = _HOLDER.search(str(error))
            self._journal.write("fail", call, held_by=match[1] if match else str(error))
        except UNSURE as error:
            self._journal.write("unknown", call, why=type(error).__name__)
        else:
            if sent == ids:
                self._journal.write("ok", call)
            else:
                self._journal.write("fail", call, held_by=sent[0])

    def _by_sql(self, request: SendRequest) -> object:
        values = {
            name: getattr(request, name)
            for name in ("domain", "type", "command_id", "priority", "delay", "expires")
        }
        values |= {"unique": request.unique, "on_conflict": request.on_conflict}
        values |= {"headers": None if request.headers is None else json.dumps(request.headers)}
        values |= {"data": json.dumps(request.data), "unique_until": str(request.unique_until)}
        with transaction(self._dsn) as connection:
            [(sent,)] = connection.execute(_SEND, values).fetchall()
        return sent

    def _request(self, call: str, index: int, unique: str) -> SendRequest:
        dice = self._dice
        domain = dice.choice((DOMAIN, LANES))
        type_ = dice.choice(_KINDS if domain == DOMAIN else [*_LIMITED])
        kind = _LIMITED.get(type_, type_)
        until = dice.choice(_UNTIL)
        delay = round(dice.uniform(0.1, 2.0), 2) if dice.random() < _DELAYED else None
        expires = None
        if dice.random() < _EXPIRING:
            expires = round((delay or 0.0) + dice.uniform(0.1, 2.0), 2)
        drawn = self._drawing.of_type(kind, call, index, delay=delay)
        return replace(
            drawn,
            domain=domain,
            type=type_,
            data={**drawn.data, "does": kind, "unique_until": str(until)},
            command_id=draw_id(dice),
            priority=dice.choice(_PRIORITIES),
            unique=unique,
            on_conflict=dice.choice(_CONFLICTS),
            unique_until=until,
            expires=expires,
        )
