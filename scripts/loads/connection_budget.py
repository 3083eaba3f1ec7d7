"""How many instances fit into the connections of a server. Pure but for what it reads."""

from dataclasses import dataclass

import psycopg

from cmdbus.worker.boot.budget import Need
from cmdbus.worker.claims.pools import HEADROOM

#: Of the load test itself: the bus's, and one that looks on.
OURS = 6
#: Left to superusers and to others on a server of our own.
_SPARE = 20


def need(procs: int, threads: int) -> Need:
    return Need(procs=procs, threads=threads, housekeeping=HEADROOM)


def wanted(instances: int, procs: int, threads: int) -> int:
    """What max_connections must be for all of them."""
    return instances * need(procs, threads).peak + OURS + _SPARE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBudget:
    """What a server has to give."""

    most: int
    reserved: int
    others: int

    @classmethod
    def of(cls, connection: "psycopg.Connection") -> "ConnectionBudget":
        row = connection.execute(
            "SELECT current_setting('max_connections')::int,"
            " current_setting('superuser_reserved_connections')::int"
            " + coalesce(current_setting('reserved_connections', true), '0')::int,"
            " (SELECT count(*) FROM pg_stat_activity"
            "  WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())"
        ).fetchall()[0]
        return cls(most=row[0], reserved=row[1], others=row[2])

    @property
    def free(self) -> int:
        return self.most - self.reserved - self.others - OURS

    def fitting(self, instances: int, one: Need) -> int:
        return max(0, min(instances, self.free // one.peak))

    def sentence(self, instances: int, one: Need) -> str:
        fitting = self.fitting(instances, one)
        fit = "all" if fitting == instances else f"only {fitting}"
        return (
            f"{fit} of {instances} instances fit: each needs up to {one.peak} connections, and "
            f"max_connections {self.most} leaves {max(0, self.free)} after {self.reserved} "
            f"reserved, {self.others} of others and {OURS} of the load test"
        )
