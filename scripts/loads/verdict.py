"""What became of what was sent: read from the tables, and judged."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from uuid import UUID

import psycopg

from loads.runs import Execution
from loads.workloads import End, Part

CHECKED = (
    "lost: sent, and neither ended nor in troubleshooting; or completed without its effect",
    "duplicates: a second row of the same id, an attempt that no recorded outcome explains,\n"
    "            a second effect of a command, or one of a command that was not completed,\n"
    "            an execution (as its handler wrote it down) while another one of the same\n"
    "            command was going on, or one that is neither an attempt nor a loss",
    "unexpected: ended otherwise than its workload must end",
)

_SENT = """
CREATE TEMPORARY TABLE sent (
    command_id uuid, type text, has_effect boolean, status text, error_code text, attempts integer
)"""
_RUNS = 'CREATE TEMPORARY TABLE run (command_id uuid, entered bigint, "left" bigint)'
_ENDED = """
CREATE TEMPORARY TABLE ended AS
SELECT command_id, status, error_code, attempts, losses, created_at,
    finished_at AS ended_at, claimer
FROM cmdbus.finished
UNION ALL
SELECT command_id, 'IN_TROUBLESHOOTING_QUEUE', error_code, attempts, losses, created_at, failed_at,
    claimer
FROM cmdbus.troubleshooting"""
_JUDGE = """
WITH present AS (
    SELECT command_id, true AS ended, status, attempts FROM ended
    UNION ALL SELECT command_id, false, 'PENDING', attempts FROM cmdbus.ready
    UNION ALL SELECT command_id, false, 'PENDING', attempts FROM cmdbus.scheduled
), rows AS (
    SELECT command_id, count(*) AS count, bool_or(ended) AS ended,
        bool_or(status = 'COMPLETED') AS completed, max(attempts) AS attempts
    FROM present GROUP BY 1
), noted AS (
    SELECT command_id, count(*) AS count FROM cmdbus.event
    WHERE kind IN ('FAILED', 'BUSINESS_RULE_FAILED', 'MOVED_TO_TROUBLESHOOTING_QUEUE') GROUP BY 1
), effects AS (
    SELECT command_id, count(*) AS count FROM effect GROUP BY 1
), one AS (
    SELECT s.command_id IS NOT NULL AS sent, coalesce(r.count, 0) AS rows,
        coalesce(r.ended, false) AS ended,
        greatest(0, r.attempts - coalesce(t.count, 0) - r.completed::int) AS unexplained,
        coalesce(e.count, 0) AS effects,
        (coalesce(s.has_effect, false) AND coalesce(r.completed, false))::int AS wanted
    FROM sent s FULL JOIN rows r USING (command_id)
    LEFT JOIN noted t USING (command_id) LEFT JOIN effects e USING (command_id)
)
SELECT count(*) FILTER (WHERE sent),
    count(*) FILTER (WHERE sent AND (NOT ended OR effects < wanted)),
    coalesce(sum(greatest(0, rows - 1) + coalesce(unexplained, 0)
        + greatest(0, effects - wanted)), 0)::bigint,
    count(*) FILTER (WHERE NOT sent)
FROM one"""
# Executions of one command, in the order in which they began: each must begin after all before
# it have ended. A loss is charged or not, so that it may be an attempt, too.
_RUN_TWICE = """
SELECT coalesce((
    SELECT count(*) FROM (
        SELECT entered < max("left") OVER (
            PARTITION BY command_id ORDER BY entered
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS early
        FROM run) r
    WHERE early), 0) + coalesce((
    SELECT sum(greatest(0, r.count - e.attempts - e.losses)) FROM ended e
    JOIN (SELECT command_id, count(*) FROM run GROUP BY 1) r USING (command_id)), 0)::bigint"""
# Only what was never lost must have ended with exactly the expected number of attempts; and
# three losses are too many for any command.
_UNEXPECTED = """
SELECT count(*) FROM sent s JOIN ended e USING (command_id)
WHERE NOT (e.status = s.status AND e.error_code IS NOT DISTINCT FROM s.error_code
           AND (e.attempts = s.attempts OR e.losses > 0))
    AND NOT (e.status = 'IN_TROUBLESHOOTING_QUEUE' AND e.losses >= 3)"""
_SPEED = """
SELECT count(*) FILTER (WHERE status = 'COMPLETED'),
    count(*) / nullif(extract(epoch FROM max(ended_at) - min(created_at)), 0)::float8,
    percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (
        ORDER BY extract(epoch FROM ended_at - created_at)::float8 * 1000)
FROM ended"""
_ENDS = "SELECT status, error_code, attempts, count(*) FROM ended GROUP BY 1, 2, 3"
_SHARES = "SELECT count(*) FROM ended WHERE claimer IS NOT NULL GROUP BY claimer ORDER BY 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    sent: int
    completed: int
    lost: int
    duplicates: int
    #: In the tables, and not sent.
    invented: int
    unexpected: int
    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    ends: Counter[End]
    #: Commands by worker process, ascending.
    shares: Sequence[int]

    @property
    def ok(self) -> bool:
        return not (self.lost or self.duplicates or self.invented or self.unexpected)

    def figures(self) -> dict[str, object]:
        found = asdict(self)
        del found["ends"], found["shares"]
        return {name: round(v, 1) if isinstance(v, float) else v for name, v in found.items()}


def judge(
    connection: psycopg.Connection,
    sent: Sequence[tuple[UUID, str]],
    parts: Sequence[Part],
    runs: Iterable[Execution],
) -> Verdict:
    cursor = connection.cursor()
    _load(cursor, sent, parts, runs)
    [[run_twice]], [[unexpected]] = (
        cursor.execute(query).fetchall() for query in (_RUN_TWICE, _UNEXPECTED)
    )
    counts = cursor.execute(_JUDGE).fetchall()[0]
    completed, rate, percentiles = cursor.execute(_SPEED).fetchall()[0]
    ends = {End(*end): count for *end, count in cursor.execute(_ENDS).fetchall()}
    p50, p95, p99 = percentiles or (0.0, 0.0, 0.0)
    return Verdict(
        sent=counts[0],
        completed=completed,
        lost=counts[1],
        duplicates=counts[2] + run_twice,
        invented=counts[3],
        unexpected=unexpected,
        rate=rate or 0.0,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        ends=Counter(ends),
        shares=[count for (count,) in cursor.execute(_SHARES).fetchall()],
    )


def _load(
    cursor: psycopg.Cursor,
    sent: Sequence[tuple[UUID, str]],
    parts: Sequence[Part],
    runs: Iterable[Execution],
) -> None:
    """Writes what is compared into tables of its own."""
    known = {part.type: part for part in parts}
    cursor.execute(_SENT)
    with cursor.copy("COPY sent FROM STDIN") as copy:
        for command_id, type_ in sent:
            part = known[type_]
            copy.write_row((command_id, type_, part.has_effect, *part.end))
    cursor.execute(_RUNS)
    with cursor.copy("COPY run FROM STDIN") as copy:
        for run in runs:
            copy.write_row(run)
    cursor.execute(_ENDED)
    for table in ("sent", "run", "ended", "effect"):
        cursor.execute(f"ANALYZE {table}".encode())
