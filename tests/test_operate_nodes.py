"""What an operator sees of all nodes at a terminal."""

import json

from cli import done, here
from handlers import connect
from published import NODE, publish


def test_nodes_are_shown_with_what_runs_and_what_was_killed(dsn: str) -> None:
    assert done(here("nodes", CMDBUS_DSN=dsn)) == "no node has run within a day\n"
    with connect(dsn) as connection:
        publish(connection)
        head, seat, runs, crash, stack = done(
            here("nodes", "--stacks", CMDBUS_DSN=dsn)
        ).splitlines()
        assert head.startswith("shop on a: running, pid 10, 5 MiB, cmdbus 1, published ")
        assert seat.startswith("  worker 0  pid ") and seat.endswith("1 of 2 threads run")
        assert runs.startswith("    domain1/Odd 00000000-0000-0000-0000-000000000001, began 1.")
        assert "worker 0, pid 9, was killed by SIGSEGV; it ran domain1/Odd" in crash
        assert stack == "    a stack"
        [node] = json.loads(done(here("nodes", "--json", CMDBUS_DSN=dsn)))["nodes"]
        assert (node["node"], node["seats"][0]["slots"][0]["type"]) == (NODE, "Odd")
        connection.execute("UPDATE cmdbus.published_node SET stopped = true")
        head, crash = done(here("nodes", CMDBUS_DSN=dsn)).splitlines()
        assert head.startswith("shop on a: stopped, ") and "SIGSEGV" in crash
