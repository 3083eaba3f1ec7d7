"""Renews leases, of many claims in one statement while the server can.

a statement fails     its claims are tried again last, half as many at once
a call had a failure  the next one begins with the largest size that worked
a call had none       the next one begins with twice the size, if it was quick
a call is cut off     the next one begins with what was tried the longest ago
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from cmdbus.clock import time
from cmdbus.worker.claims.claim import ClaimRef, Connection
from cmdbus.worker.claims.held import HeldClaims
from cmdbus.worker.claims.rejections import may_be_of_one_row, reason

logger = logging.getLogger(__name__)

#: A claim with the incarnation that has it.
_Held = tuple[int, ClaimRef]

#: Claims of the largest statement: more than a node holds.
_MAX_ROWS = 2**20
#: Seconds below which a call is quick.
_QUICK = 1.0


class Renewal:
    """Used by one thread."""

    def __init__(self, claims: HeldClaims) -> None:
        self._claims = claims
        #: Claims of the next call's first statement.
        self._size = _MAX_ROWS
        #: The number of the latest statement for each claim; empty after a call without failures.
        self._tried: dict[tuple[int, int, UUID], int] = {}

    def renew(
        self, connection: Connection, held: Mapping[int, Sequence[ClaimRef]]
    ) -> list[ClaimRef]:
        """Of these claims, by incarnation, also of none; returns those that were lost."""
        waiting = deque(self._in_order(held))
        if not waiting:
            return self._claims.renew(connection, {})
        began = time.monotonic()
        sizes = _Sizes(self._size)
        lost: list[ClaimRef] = []
        try:
            while waiting:
                some = [waiting.popleft() for _ in range(min(sizes.size, len(waiting)))]
                try:
                    lost += self._renew(connection, some)
                except Exception as error:
                    if not may_be_of_one_row(error):
                        raise
                    sizes.failed(len(some))
                    if len(some) == 1:
                        _warn(some[0][1], error)
                    else:
                        waiting.extend(some)
                else:
                    sizes.worked(len(some))
        finally:
            self._size = sizes.following(time.monotonic() - began)
        if not sizes.any_failed:
            self._tried.clear()
        return lost

    def _in_order(self, held: Mapping[int, Sequence[ClaimRef]]) -> list[_Held]:
        pairs = [(incarnation, key) for incarnation, keys in held.items() for key in keys]
        tried = {name: self._tried.get(name, 0) for name in map(_name, pairs)}
        self._tried = {name: number for name, number in tried.items() if number}
        return sorted(pairs, key=lambda pair: tried[_name(pair)])

    def _renew(self, connection: Connection, some: Iterable[_Held]) -> list[ClaimRef]:
        number = max(self._tried.values(), default=0) + 1
        grouped: dict[int, list[ClaimRef]] = {}
        for pair in some:
            self._tried[_name(pair)] = number
            grouped.setdefault(pair[0], []).append(pair[1])
        return self._claims.renew(connection, grouped)


class _Sizes:
    """How many claims the statements of one call are for. Pure."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.any_failed = False
        self._worked = 0

    def worked(self, count: int) -> None:
        self._worked = max(self._worked, count)

    def failed(self, count: int) -> None:
        self.any_failed = True
        self.size = max(count // 2, 1)

    def following(self, seconds: float) -> int:
        """The size with which the next call begins."""
        if self.any_failed:
            return self._worked or self.size
        return min(self.size * 2, _MAX_ROWS) if seconds < _QUICK else self.size


def _name(pair: _Held) -> tuple[int, int, UUID]:
    return pair[0], pair[1].id, pair[1].command_id


def _warn(key: ClaimRef, error: Exception) -> None:
    logger.error(
        "cannot renew the lease of command %s (%s): it can be claimed when that ends",
        key.command_id,
        reason(error),
    )
