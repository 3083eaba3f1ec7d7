"""The schedules of an app, whose fleets are killed and started again."""

import signal
from pathlib import Path

import pytest
from eventually import eventually
from fleet import Fleet, kill, unstarted, write_app

SCHEDULED = """
from fleet_app import noop, registry as registry
registry.schedule(every="1s", name="often", missed="all")(noop)
registry.schedule("* * * * * *", timezone="Europe/Zurich", name="cron", missed="all")(noop)
"""
#: Of each schedule: the number of its ticks, of its commands, and of the seconds from the first
#: tick to the last.
TICKS = """
SELECT name, count(DISTINCT tick), count(*), extract(epoch FROM max(tick) - min(tick)) + 1
FROM (SELECT details ->> 'schedule' AS name, (details ->> 'tick')::timestamptz AS tick
      FROM cmdbus.event WHERE kind = 'SENT_BY_SCHEDULE') e
GROUP BY name ORDER BY name
"""


def await_ticks(fleet: Fleet, more: int) -> int:
    """Until so many more have been sent; returns how many there are."""
    before = ticks(fleet)
    eventually(lambda: ticks(fleet) >= before + more, 20)
    return ticks(fleet)


def ticks(fleet: Fleet) -> int:
    query = "SELECT count(*) FROM cmdbus.event WHERE kind = 'SENT_BY_SCHEDULE'"
    return int(fleet.query(query)[0][0])


@pytest.mark.fleet(started=False, procs=1)
def test_no_tick_is_missing_or_twice_whatever_is_killed_and_started_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    write_app(fleet.place, SCHEDULED)
    fleet.start()
    with unstarted(fleet.dsn, tmp_path, alone=False, name="other", procs=1) as other:
        other.start()
        for each in (fleet, other):
            each.wait_until_ready()
        await_ticks(fleet, 1)
        steward = fleet.steward()
        assert steward is not None
        kill(steward)
        await_ticks(fleet, 1)
        other.send_signal(signal.SIGKILL)
        other.wait()
    kill(fleet.pid)
    fleet.wait()
    fleet.start()
    pids = fleet.wait_until_ready().values()
    await_ticks(fleet, 3)
    names = "SELECT name, app FROM cmdbus.schedule ORDER BY name"
    assert fleet.query(names) == [("cron", "shop:registry"), ("often", "shop:registry")]
    write_app(fleet.place, SCHEDULED.replace("often", "seldom").replace('"1s"', '"1d"'))
    fleet.send_signal(signal.SIGHUP)
    fleet.await_successors(pids)
    assert [name for name, _ in fleet.query(names)] == ["cron", "seldom"]
    fleet.stop()
    [cron, often] = fleet.query(TICKS)
    assert (cron[0], often[0]) == ("cron", "often")
    for _, found, commands, seconds in (cron, often):
        assert found == commands == seconds
