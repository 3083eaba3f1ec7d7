"""The invariants of fleets, of the server and of the run itself. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from fault_injection.grouping import pid_of
from fault_injection.history import History, Line, Recovery

#: Starts at one post of processes that run nothing, at most, and the seconds that they take.
_MAX_STARTS, _STARTS_S = 40, 60.0
#: A stop reaches every process within that.
_STOPS_S = 1.0
_TWINS = "chaos.twin"
#: While one of these goes on, or shortly after, a session may wait longer than it should.
_FREEZING = (
    *("stop-", "freeze-", "gil", "stuck", "proxy-", "link-", "server-"),
    *("lock-", "snapshot", "deadlock", "migrate", "too-many"),
)
_THAWED_S = 12.0


def counts_agree(history: History) -> Iterator[str]:
    for count in history.counts:
        if count.rows != count.commands:
            yield f"at {count.at:.1f}: {count.commands} commands were sent, {count.rows} are there"


def counters_never_fall(history: History) -> Iterator[str]:
    latest: dict[tuple[str, int, str], int] = {}
    for sample in history.samples:
        for name, value in sample.counters.items():
            key = sample.instance, sample.supervisor, name
            if value < latest.get(key, 0):
                yield f"{sample.instance}: {name} fell from {latest[key]} to {value}"
            latest[key] = value


STARTS = re.compile(
    r"(worker \d+|steward|quarantine) starts, pid (\d+), generation (\d+)(?:: (\w+))?$"
)
#: Its successor starts before it is ordered to stop.
_DECIDED = ("recycled", "reloaded", "degraded", "terminated")
#: After SIGTTOU and SIGTTIN a seat is taken again while its last process is leaving.
_RESIZED = re.compile(r"\d+ worker process(?:es)? from now on$")
_ENDED = re.compile(
    r"(?P<a>worker \d+|steward|quarantine) has stopped, pid \d+$"
    r"|(?P<b>worker \d+|steward|quarantine), pid \d+"
    r"(?:, exited with|, has exited,|, was killed by|, was stopped by|: the system)"
    r"|(?P<c>worker \d+|steward|quarantine) is (?:killed|ordered to stop): "
)


def restarts_have_causes(history: History) -> Iterator[str]:
    yield from history.wrong
    ended: Counter[tuple[str, int, str]] = Counter()
    replaced: Counter[tuple[str, int, str]] = Counter()
    resized: Counter[tuple[str, int]] = Counter()
    for line in history.lines:
        if match := _ENDED.match(line.message):
            name = match["a"] or match["b"] or match["c"]
            ended[line.instance, line.pid, name] += 1
        elif _RESIZED.match(line.message):
            resized[line.instance, line.pid] += 1
        elif match := STARTS.match(line.message):
            name, pid, generation, reason = match.groups()
            key = line.instance, line.pid, name
            if int(generation) == 1 or reason in _DECIDED:
                continue
            replaced[key] += 1
            if replaced[key] > ended[key] + resized[line.instance, line.pid]:
                yield f"{line.instance}: {name} got generation {generation}, pid {pid}, for nothing"


def starts_are_bounded(history: History) -> Iterator[str]:
    """A process that starts, finds nothing to run and exits may not start again and again."""
    ran = {mark.pid for mark in history.marks}
    starts: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for line in history.lines:
        if (match := STARTS.match(line.message)) and int(match[2]) not in ran:
            starts[line.instance, line.pid, match[1]].append(line.at)
    for (instance, _, name), times in starts.items():
        spans = [last - first for first, last in zip(times, times[_MAX_STARTS:], strict=False)]
        if spans and min(spans) < _STARTS_S:
            yield f"{instance}: {name} started {_MAX_STARTS + 1} times in {min(spans):.1f} s"


def fleets_are_bounded(history: History) -> Iterator[str]:
    """One more than are wanted while one is replaced; a killed one may be dying."""
    seconds = history.limits.drain + 2.0
    excess: dict[str, int] = defaultdict(int)
    for index, sample in enumerate(history.samples):
        recent = [
            other.wanted
            for other in history.samples[max(0, index - 200) : index + 1]
            if other.instance == sample.instance and other.at > sample.at - seconds
        ]
        over = sample.workers > max(recent) + 1
        excess[sample.instance] = excess[sample.instance] + 1 if over else 0
        if excess[sample.instance] == 2:
            yield f"{sample.instance} had {sample.workers} workers, {sample.wanted} were wanted"


def connections_are_bounded(history: History) -> Iterator[str]:
    for count in history.counts:
        if count.sessions > history.limits.sessions:
            yield f"at {count.at:.1f}: {count.sessions} sessions of {history.limits.sessions}"


def none_claims_after_its_stop(history: History) -> Iterator[str]:
    pids, stops = _stops(history.lines)
    for move in history.moves:
        if move.what != "claim":
            continue
        pid = pid_of(history.workers.get(move.claimer or 0, ""))
        for supervisor, at in stops:
            late = pid in pids[supervisor] and move.at > at + _STOPS_S
            if late and not _excused(history.recoveries, at, _FREEZING):
                yield f"{pid} claimed {move.command_id} {move.at - at:.1f} s after its stop"


def everything_works_again(history: History) -> Iterator[str]:
    limits = history.limits
    for one in history.recoveries:
        limit = limits.recovered_within.get(one.kind, float("inf"))
        if one.seconds is None:
            yield f"after fault {one.fault} ({one.kind}) not everything worked again"
        elif one.single and one.seconds > limit:
            yield f"fault {one.fault} ({one.kind}): {one.seconds:.1f} s, and {limit:g} are allowed"
        if one.broken and one.single:
            yield f"fault {one.fault} ({one.kind}): {one.broken}"
    if history.drained is None:
        yield f"not everything ended after the faults, and nothing more for {limits.standstill:g} s"


def the_server_is_content(history: History) -> Iterator[str]:
    for at, state, text in history.server or ():
        excused = _excused(history.recoveries, at, _FREEZING)
        # The detail lists the processes: handlers may deadlock by the application's own rows.
        ours = state == "40P01" and text.startswith("DETAIL") and not _is_of_handlers(text)
        if text.startswith("PANIC") or ours:
            yield f"the server logged {state} {text}"
        elif state in ("57014", "25P03") and not excused and text.startswith(("ERROR", "FATAL")):
            yield f"the server logged {state} {text} at {at:.1f}, when nothing was frozen"


def _is_of_handlers(detail: str) -> bool:
    """Each statement that waited is one of an application's."""
    statements = [line for line in detail.splitlines() if re.match(r"Process \d+: ", line)]
    return bool(statements) and all(_TWINS in statement for statement in statements)


def every_source_was_heard(history: History) -> Iterator[str]:
    """A check of nothing finds nothing."""
    for name in ("calls", "rows", "moves", "marks", "lines", "samples", "counts", "recoveries"):
        if not getattr(history, name):
            yield f"there are no {name}"
    if history.server is not None and not history.server:
        yield "the server's log is empty"
    ended = {row.domain for row in history.rows if row.table not in ("ready", "scheduled")}
    for name in set(history.limits.domains) - ended:
        yield f"nothing of {name} has ended"


def no_secret_is_printed(history: History) -> Iterator[str]:
    for place in history.leaks:
        yield f"the password was seen in {place}"


def no_process_is_left(history: History) -> Iterator[str]:
    for stray in history.strays:
        yield f"process {stray.pid} was {stray.what} for {stray.seconds:.1f} s"


def _stops(lines: Iterable[Line]) -> tuple[Mapping[int, set[int]], list[tuple[int, float]]]:
    """The workers of each supervisor, and the time at which each was asked to stop."""
    pids: dict[int, set[int]] = defaultdict(set)
    stops = []
    for line in lines:
        if match := STARTS.match(line.message):
            pids[line.pid].add(int(match[2]))
        elif line.message.startswith("stopping within"):
            stops.append((line.pid, line.at))
    return pids, stops


def _excused(recoveries: Iterable[Recovery], at: float, kinds: tuple[str, ...]) -> bool:
    return any(
        one.kind.startswith(kinds) and one.began - 1.0 <= at <= one.ended + _THAWED_S
        for one in recoveries
    )
