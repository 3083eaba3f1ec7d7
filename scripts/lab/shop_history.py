"""An hour of the shop's past, as its fleets would have kept it: something to see in charts."""

import math
from datetime import UTC, datetime, timedelta

import psycopg

from cmdbus.rollups import BUCKETS, OUTCOMES

_MINUTES = 58
#: Commands a minute that each domain completes, on average; the first is all of them.
_RATES = {"": 980, "payments": 420, "mail": 330, "stock": 160, "parcels": 70}
#: Of a hundred: how many waited, and ran, up to which bound of the histogram.
_WAITED = {0.0025: 35, 0.005: 40, 0.01: 18, 0.05: 6, 0.25: 1}
_RAN = {0.005: 10, 0.01: 30, 0.025: 34, 0.05: 20, 0.1: 5, 0.5: 1}
_INSERT = """
INSERT INTO cmdbus.rollup (resolution, slot, domain, at, figures, waiting, oldest_age, limited,
    later, running, in_trouble, unfinished)
SELECT s.resolution, s.slot, %(domain)s, s.at, %(figures)s, %(waiting)s, %(oldest_age)s, 14, 1,
    %(running)s, 6, %(unfinished)s
FROM cmdbus.rollup_slots(%(at)s) s
WHERE s.resolution = 1
ON CONFLICT DO NOTHING
"""


def write_shop_history(dsn: str) -> None:
    now = datetime.now(UTC)
    rows = [
        _row(domain, rate, minute, now - timedelta(minutes=minute))
        for domain, rate in _RATES.items()
        for minute in range(1, _MINUTES)
    ]
    with psycopg.connect(dsn) as connection:
        connection.cursor().executemany(_INSERT, rows)


def _row(domain: str, rate: int, minute: int, at: datetime) -> dict[str, object]:
    """Busier and quieter by turns, with a rush twenty minutes ago."""
    rush = math.exp(-(((minute - 20) / 4) ** 2))
    busy = 1 + 0.25 * math.sin(minute / 5 + len(domain)) + 1.5 * rush
    done = round(rate * busy)
    ends = dict.fromkeys(OUTCOMES, 0) | {"completed": done, "failed": done // 90}
    ends |= {"retry": done // 60, "trouble": done // 400}
    slow = {0.5: round(60 * rush), 2.5: round(20 * rush)}
    waiting = round(rate * (0.02 + 0.5 * rush))
    return {
        "domain": domain,
        "at": at,
        "figures": [*ends.values(), *_histogram(_WAITED | slow, done), *_histogram(_RAN, done)],
        "waiting": waiting,
        "oldest_age": 0.2 + 9 * rush,
        "running": round(rate / 60 * 0.03) + 2,
        "unfinished": waiting + 15,
    }


def _histogram(shares: dict[float, int], total: int) -> list[int]:
    return [shares.get(bound, 0) * total // 100 for bound in (*BUCKETS, math.inf)]
