"""Names of sessions: made by one function, read by one pattern, here and on the server."""

import re

import psycopg

from cmdbus.checks import check_schema
from cmdbus.database.session_names import PATTERN, incarnation_of, session_name

LONGEST = "s" * 48
NAMES = [
    (session_name("cmdbus", 1), 1),
    (session_name("cmdbus", 2**63 - 1), 2**63 - 1),
    (session_name(check_schema(LONGEST), 36**12), 36**12),
]
OTHERS = ["cmdbus:7", "cmdbus:bus", "cmdbus:init", "psql", session_name("X", 7), ""]


def test_a_name_tells_its_incarnation_and_only_nodes_have_one() -> None:
    assert [incarnation_of(name) for name, _ in NAMES] == [number for _, number in NAMES]
    assert {incarnation_of(name) for name in OTHERS} == {None}
    assert not re.match(PATTERN, "cmdbus:0000000000007 or more")


def test_a_server_keeps_the_longest_name_and_reads_it_by_the_same_pattern(dsn: str) -> None:
    for name in [name for name, _ in NAMES] + OTHERS:
        with psycopg.connect(dsn, application_name=name) as session:
            found = session.execute(
                "SELECT application_name = %s, application_name ~ %s FROM pg_stat_activity"
                " WHERE pid = pg_backend_pid()",
                (name, PATTERN),
            ).fetchone()
            assert found == (True, incarnation_of(name) is not None)
