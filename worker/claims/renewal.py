"""Renews leases, of many claims in one statement while the server can.

a statement fails     its claims are tried again last, half as many at once
a call had a failure  the next one begins with the largest size that worked
a call had none       the next one begins with twice the size, if it was quick
a call is cut off     the next one begins with the claims tried the longest ago
"""

import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

from cmdbus.clock import time
from cmdbus.command_log import log_about
from cmdbus.worker.claims.claim import ClaimRef, Connection
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.claims.log_fields import log_fields
from cmdbus.worker.claims.rejections import may_be_of_one_row, reason

logger = logging.getLogger(__name__)

#: A claim with the incarnation that has it.
_Held = tuple[int, ClaimRef]

#: Claims of the largest statement: more than a node holds.
_MAX_ROWS = 2**20
#: Seconds below which a call is quick.
_QUICK_SECONDS = 1.0


class Renewal:
    """Used by one thread."""

    def __init__(self, statements: ClaimStatements) -> None:
        self._statements = statements
        #: Claims of the next call's first statement.
        self._size = _MAX_ROWS
        #: The number of the latest statement for each claim; empty after a call without failures.
        self._tried: dict[tuple[int, int, UUID], int] = {}

    def renew(
        self, connection: Connection, held: Mapping[int, Sequence[ClaimRef]]
    ) -> list[ClaimRef]:
        """Renews these claims, by incarnation, also none; returns those that were lost."""
        waiting = self._in_order(held)
        if not waiting:
            return self._statements.renew(connection, {})
        began, size = time.monotonic(), self._size
        worked, failed, lost = 0, False, list[ClaimRef]()
        try:
            while waiting:
                some, waiting = waiting[:size], waiting[size:]
                try:
                    lost += self._renew(connection, some)
                    worked = max(worked, len(some))
                except Exception as error:
                    if not may_be_of_one_row(error):
                        raise
                    failed, size = True, max(len(some) // 2, 1)
                    if len(some) == 1:
                        self._warn(connection, some[0][1], error)
                    else:
                        waiting += some
        finally:
            if failed:
                self._size = worked or size
            elif time.monotonic() < began + _QUICK_SECONDS:
                self._size = min(size * 2, _MAX_ROWS)
        if not failed:
            self._tried.clear()
        return lost

    def _in_order(self, held: Mapping[int, Sequence[ClaimRef]]) -> list[_Held]:
        """The claims that were tried the longest ago come first."""
        pairs = [(incarnation, key) for incarnation, keys in held.items() for key in keys]
        tried = {name: self._tried.get(name, 0) for name in map(_name, pairs)}
        self._tried = {name: number for name, number in tried.items() if number}
        return sorted(pairs, key=lambda pair: tried[_name(pair)])

    def _renew(self, connection: Connection, some: Sequence[_Held]) -> list[ClaimRef]:
        number = max(self._tried.values(), default=0) + 1
        grouped: dict[int, list[ClaimRef]] = {}
        for pair in some:
            self._tried[_name(pair)] = number
            grouped.setdefault(pair[0], []).append(pair[1])
        return self._statements.renew(connection, grouped)

    def _warn(self, connection: Connection, key: ClaimRef, error: Exception) -> None:
        message = "cannot renew the lease of a command (%s): it can be claimed when that ends"
        about = log_fields(self._statements, connection, key)
        log_about(logger, logging.ERROR, about, message, reason(error))


def _name(pair: _Held) -> tuple[int, int, UUID]:
    return pair[0], pair[1].id, pair[1].command_id
