"""A fleet whose application reports to Sentry."""

import json
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from fleet import Fleet, write_app

from cmdbus import CommandBus


@pytest.mark.long
@pytest.mark.fleet(started=False, procs=1, threads=2)
def test_each_failed_attempt_is_one_event_when_its_process_stops(
    fleet: Fleet, dsn: str, tmp_path: Path
) -> None:
    """Also after a fork; and what the log says of it is no other event."""
    write_app(tmp_path, "from sentry_app import registry as registry")
    fleet.start()
    fleet.wait_until_ready()
    with CommandBus(dsn) as bus:
        for type in ("Fail", "Fork"):
            bus.send("shop", type, {})
        eventually(lambda: bus.troubleshooting.count("shop") == 2)
    assert not [*tmp_path.glob("*.events")]
    assert fleet.stop() == 0
    written = "".join(file.read_text() for file in tmp_path.glob("*.events"))
    events: list[Any] = [json.loads(line) for line in written.splitlines()]
    found = [(e["tags"]["command_type"], e["tags"]["attempt"], e["level"]) for e in events]
    assert sorted(found) == [
        ("Fail", 1, "warning"),
        ("Fail", 2, "error"),
        ("Fork", 1, "error"),
    ]
