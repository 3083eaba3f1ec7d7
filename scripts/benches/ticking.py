"""How long after its time a tick of a schedule sends its command."""

import time

from benches.comparison import Comparison, Found, Place
from benches.fleet import DOMAIN, TYPE, fleet, nothing
from benches.yard import yard

#: Ticks of a round, for each of --seconds: one a second.
_TICKS_TIMES = 5
_BOUND_MS = 100.0
_INSTANCES = 2
_LATE = """
    SELECT 1000 * extract(epoch FROM c.created_at - (e.details ->> 'tick')::timestamptz)::float8
    FROM cmdbus.event e JOIN cmdbus.command c USING (domain, command_id)
    WHERE e.kind = 'SENT_BY_SCHEDULE' ORDER BY c.created_at"""


def tick_latency(slot: Place) -> Found:
    """From each tick of a schedule of every second to the sending of its command, the longest of a
    round, in two idle fleets of 2 x 8 that both try to send it; against the 100 ms that are due."""
    ticks = max(1, int(_TICKS_TIMES * slot.sizes.seconds))
    count = ticks * slot.sizes.rounds
    with (
        yard(slot) as here,
        fleet(slot.dsn, {TYPE: nothing}, processes=2, threads=8, instances=_INSTANCES) as running,
    ):
        here.bus.schedules.add("tick", DOMAIN, TYPE, every="1s")
        late: list[float] = []
        while len(late) < count:
            time.sleep(1.0)
            running.check()
            late = [ms for (ms,) in here.connection.execute(_LATE).fetchall()]
    rounds = [late[ticks * n : ticks * (n + 1)] for n in range(slot.sizes.rounds)]
    configuration = {
        "ticks": count,
        "median_ms": round(sorted(late)[len(late) // 2], 2),
        "instances": _INSTANCES,
        "processes": 2,
        "threads": 8,
    }
    pairs = [(_BOUND_MS, max(each)) for each in rounds]
    return {"tick-latency": Comparison(pairs=pairs, configuration=configuration, less=True)}
