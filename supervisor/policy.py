"""What the supervisor does next: a function of what it sees, its limits and the time. Pure.

The rules, in the order in which they are asked:

    a process that was told to leave and has not in time       is killed
    a main thread past its due (hung, or its GIL is held)      its stacks are dumped, then killed
    a slot past its due by as much as layer 5 is above 4       leaves, its successor starts
    more stuck threads or pool exhaustions than are healthy    leaves, its successor starts
    a number without a process                                 gets one, after a pause if its
                                                               last ones died early
    an older application, too many commands, bytes or seconds  its successor starts, then it leaves
    degraded for long while another one is healthy, or away    the same
    from a database that another one reaches

Whoever is being replaced gently has a successor before it leaves, one number at a time: the
next one's waits until the one before has left. After a round that came late nobody is
judged: only deadlines that were told are kept. All times are seconds of one monotonic clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cmdbus.board.health import MAX_STUCK, Health, HealthReport
from cmdbus.board.records import Restart, Role, Verdict
from cmdbus.timeouts import BOOT_SECONDS

#: A process that is to be killed for its main thread gets so long to write its stacks.
DUMP_SECONDS = 0.5
#: One that was killed and is not dead after so long cannot die (disk wait): it is given up.
UNDEAD_SECONDS = 2.0
#: The steward has so long to hand back what was killed at the deadline.
RESCUE_SECONDS = 3.0
#: A steward that has nothing to do notices within so many seconds that the database is away.
OUTAGE_NOTICE_SECONDS = 15.0
#: Worker processes beyond the wanted number: a replacement starts before its predecessor stops.
MAX_SURGE = 1
#: Seconds added to the furthest due time that a process may show.
_SPARE_SECONDS = 10.0
#: Samples of too much memory in a row before a process is replaced for it.
RSS_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    #: Layers 4 and 5.
    thread: float
    watchdog: float
    #: How long what runs may go on once its process was told to leave.
    stop: float
    max_commands: int | None = None
    max_rss_bytes: int | None = None
    max_age: float | None = None

    @property
    def stuck_grace(self) -> float:
        """How long a slot may be past its due."""
        return self.watchdog - self.thread


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A child as its seat shows it, and as we have treated it."""

    index: int
    role: Role
    number: int
    generation: int
    #: Which application it runs: raised by each reload.
    app: int = 0
    born: float = 0.0
    ready: bool = False
    #: When its main thread promised to be back.
    due: float | None = None
    #: The slot whose due is past for longest.
    latest_slot: int | None = None
    latest_due: float | None = None
    levels: HealthReport = field(default_factory=HealthReport)
    degraded_since: float | None = None
    #: When it said for the last time that the database is away.
    away_at: float = 0.0
    commands: int = 0
    rss_bytes: int = 0
    #: Samples of too much memory, in a row.
    rss_over: int = 0
    #: A part of max_age and max_commands that this one lives longer, so that they spread.
    spread: float = 0.0
    stop_by: float | None = None
    #: What it was told to leave for; NONE for an order (stop, reload, recycle).
    verdict: Verdict = Verdict.NONE
    dumped_at: float | None = None
    killed_at: float | None = None

    @property
    def is_staying(self) -> bool:
        """Neither told to leave nor killed."""
        return self.stop_by is None and self.killed_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Everything that a decision is made from."""

    processes: Sequence[ProcessView]
    wanted: int
    #: The application that processes should run.
    app: int = 0
    #: When the next process of a number may start; missing: at once.
    not_before: dict[tuple[Role, int], float] = field(default_factory=dict)
    #: Once it stops: when it must have.
    stop_by: float | None = None
    #: Dead processes whose commands are not handed back yet.
    unrescued: int = 0
    suspects: bool = False
    #: False after a round that came late itself: what looks late may be our own lateness.
    can_judge: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    role: Role
    number: int
    #: None for the first of its number, and after a death.
    reason: Restart | None = None
    #: For the log: which limit the one before has reached.
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    process: ProcessView
    by: float
    #: None because nobody needs it any more.
    reason: Restart | None = None
    #: STUCK or CRITICAL; NONE for an order, which says nothing about its commands.
    verdict: Verdict = Verdict.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    process: ProcessView


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    process: ProcessView
    verdict: Verdict
    #: Whether an overdue slot counts as the cause; not while the supervisor itself was late.
    measured: bool = True


Action = Start | Stop | Dump | Kill


def decide(fleet: FleetView, limits: Limits, now: float) -> list[Action]:
    """At most one action for each process, and one start for each number."""
    actions = [action for p in fleet.processes for action in _check_process(p, fleet, limits, now)]
    if fleet.stop_by is not None:
        rest = _without(fleet.processes, actions)
        return [*actions, *_stop(fleet, rest, fleet.stop_by, now)]
    actions += _succeed(_without(fleet.processes, actions), limits, now)
    rest = _without(fleet.processes, actions)
    return [*actions, *_fill(fleet, rest, limits, now)]


def _without(processes: Iterable[ProcessView], actions: Iterable[Action]) -> list[ProcessView]:
    touched = {id(action.process) for action in actions if not isinstance(action, Start)}
    return [process for process in processes if id(process) not in touched]


def next_look(fleet: FleetView, limits: Limits, now: float) -> float:
    """The earliest time, later than now, at which time alone may change the decision."""
    times = [now + 1.0, *fleet.not_before.values()]
    if fleet.stop_by is not None:
        times += [fleet.stop_by, fleet.stop_by + RESCUE_SECONDS]
    for process in fleet.processes:
        times += _turns(process, limits)
    return min(at for at in times if at > now)


def _turns(process: ProcessView, limits: Limits) -> Iterator[float]:
    for at, after in (
        (process.killed_at, UNDEAD_SECONDS),
        (process.dumped_at, DUMP_SECONDS),
        (process.stop_by, 0.0),
        (process.due, 0.0),
        (process.latest_due, limits.stuck_grace),
        (process.degraded_since, limits.watchdog),
        (process.born, _longest_life(process, limits)),
    ):
        if at is not None:
            yield at + after


def _check_process(
    process: ProcessView, fleet: FleetView, limits: Limits, now: float
) -> Iterator[Action]:
    if process.killed_at is not None:
        return
    if process.dumped_at is not None:
        # Late ourselves, we let it come back first; unless there is no time left for that.
        heard = fleet.can_judge or (fleet.stop_by is not None and now >= fleet.stop_by)
        if heard and now >= process.dumped_at + DUMP_SECONDS:
            yield Kill(process=process, verdict=Verdict.HUNG)
    elif process.stop_by is not None:
        if now >= process.stop_by:
            verdict = Verdict.LATE if process.verdict is Verdict.NONE else process.verdict
            yield Kill(process=process, verdict=verdict, measured=fleet.can_judge)
    elif not fleet.can_judge:
        return
    elif process.due is not None and not is_ahead(process.due, limits.watchdog, now):
        yield Dump(process=process)
    elif fleet.stop_by is None and process.role is not Role.STEWARD:
        found = _verdict(process, limits, now)
        if found is not Verdict.NONE:
            stuck = found is Verdict.STUCK or process.levels.stuck_threads > MAX_STUCK
            yield Stop(
                process=process,
                by=now + limits.stop,
                reason=Restart.STUCK if stuck else Restart.DEGRADED,
                verdict=found,
            )


def is_ahead(due: float, watchdog: float, now: float) -> bool:
    """Whether a main thread's due time is still to come. One that is further ahead than any
    process may set it counts as past: it is garbage, or of a clock that an application has
    replaced."""
    return now < due <= now + max(watchdog, BOOT_SECONDS) + _SPARE_SECONDS


def _verdict(process: ProcessView, limits: Limits, now: float) -> Verdict:
    """Why it must stop claiming at once."""
    if process.levels.database_away:
        return Verdict.NONE
    due = process.latest_due
    if due is not None and now >= due + limits.stuck_grace:
        return Verdict.STUCK
    return Verdict.CRITICAL if process.levels.health is Health.CRITICAL else Verdict.NONE


def _fill(
    fleet: FleetView, rest: Sequence[ProcessView], limits: Limits, now: float
) -> Iterator[Action]:
    """A process for each number that has none; none for numbers that nobody wants."""
    staying = {(p.role, p.number) for p in fleet.processes if p.is_staying}
    living = sum(lives(p, now) for p in fleet.processes if p.role is Role.WORKER)
    wanted = [(Role.STEWARD, 0), *((Role.WORKER, number) for number in range(fleet.wanted))]
    if fleet.suspects:
        wanted.append((Role.QUARANTINE, 0))
    for role, number in wanted:
        if (role, number) in staying or fleet.not_before.get((role, number), now) > now:
            continue
        if role is Role.WORKER:
            if living >= fleet.wanted + MAX_SURGE:
                continue
            living += 1
        elif any(lives(p, now) for p in fleet.processes if p.role is role):
            continue  # Two stewards would renew and hand back the same.
        yield Start(role=role, number=number)
    for process in rest:
        if process.is_staying and process.role is Role.WORKER and process.number >= fleet.wanted:
            yield Stop(process=process, by=now + limits.stop)
    yield from _replace(fleet, rest, limits, now, living)


def lives(process: ProcessView, now: float) -> bool:
    """Holds its connections, as far as anybody can say: one that cannot die is given up."""
    return process.killed_at is None or now < process.killed_at + UNDEAD_SECONDS


def _replace(
    fleet: FleetView, rest: Sequence[ProcessView], limits: Limits, now: float, living: int
) -> Iterator[Action]:
    """One gentle replacement at a time."""
    workers = [
        p for p in rest if p.is_staying and p.role is Role.WORKER and p.number < fleet.wanted
    ]
    if len({p.number for p in workers}) < fleet.wanted or living > fleet.wanted:
        return  # Somebody is missing, or a replacement is under way.
    if not all(p.ready for p in workers):
        return
    outdated = list(_outdated(workers, fleet, limits, now))
    for process, reason, why in outdated:
        if fleet.not_before.get((Role.WORKER, process.number), now) > now:
            continue  # Its last successor died early.
        yield Start(role=Role.WORKER, number=process.number, reason=reason, why=why)
        return
    if outdated:
        return
    for process in rest:
        if process.is_staying and process.role is Role.STEWARD and process.app < fleet.app:
            yield Stop(process=process, by=now + limits.stop, reason=Restart.RELOADED)


def _outdated(
    workers: Sequence[ProcessView], fleet: FleetView, limits: Limits, now: float
) -> Iterator[tuple[ProcessView, Restart, str]]:
    """Each with why, and with the limit that it has reached."""
    for process in workers:
        if process.app < fleet.app:
            yield process, Restart.RELOADED, ""
    for process in workers:
        if why := _used_up(process, limits, now):
            yield process, Restart.RECYCLED, why
    if not fleet.can_judge:
        return
    healthy = any(p.levels.health is Health.HEALTHY for p in workers)
    for process in workers:
        since = process.degraded_since
        if since is None or now < since + limits.watchdog:
            continue
        if process.levels.database_away:
            if _others_reach_it(fleet, since, limits.watchdog, now):
                yield process, Restart.DEGRADED, ""
        elif healthy:
            yield process, Restart.DEGRADED, ""


def _others_reach_it(fleet: FleetView, since: float, watchdog: float, now: float) -> bool:
    """The database, that is, and for a whole watchdog: who alone cannot is ill himself (out of
    descriptors, say). Not who has not come back yet, beside one that has not noticed yet."""
    return any(
        ((p.levels.last_success or 0.0) > since and now >= p.away_at + watchdog)
        or (
            p.role is Role.STEWARD
            and p.ready
            and now >= max(p.away_at, since) + max(watchdog, OUTAGE_NOTICE_SECONDS)
        )
        for p in fleet.processes
        if not p.levels.database_away
    )


def _used_up(process: ProcessView, limits: Limits, now: float) -> str:
    """Which limit the process has reached; empty if none."""
    most = limits.max_commands
    if most is not None and process.commands >= most * (1.0 + process.spread):
        return f"it has run {process.commands} commands (--max-commands {most})"
    if now >= process.born + _longest_life(process, limits):
        return f"it is {now - process.born:.0f} s old (--max-age {limits.max_age:g})"
    if process.rss_over >= RSS_SAMPLES and limits.max_rss_bytes is not None:
        used, allowed = process.rss_bytes / 2**20, limits.max_rss_bytes / 2**20
        return f"it uses {used:.0f} MiB of memory (--max-rss {allowed:.0f}M)"
    return ""


def _longest_life(process: ProcessView, limits: Limits) -> float:
    return float("inf") if limits.max_age is None else limits.max_age * (1.0 + process.spread)


def _succeed(processes: Iterable[ProcessView], limits: Limits, now: float) -> Iterator[Action]:
    """Who has a successor that is ready leaves."""
    workers = [p for p in processes if p.is_staying and p.role is Role.WORKER]
    for process in workers:
        if any(
            p.ready and p.number == process.number and p.generation > process.generation
            for p in workers
        ):
            yield Stop(process=process, by=now + limits.stop)


def _stop(fleet: FleetView, rest: Sequence[ProcessView], by: float, now: float) -> Iterator[Action]:
    """The steward leaves last: it hands back what the others leave."""
    yield from _stop_by(by, (p for p in rest if p.role is not Role.STEWARD))
    if any(lives(p, now) for p in fleet.processes if p.role is not Role.STEWARD):
        return
    if fleet.unrescued and now < by + RESCUE_SECONDS:
        return
    yield from _stop_by(now + RESCUE_SECONDS, (p for p in rest if p.role is Role.STEWARD))


def _stop_by(by: float, processes: Iterable[ProcessView]) -> Iterator[Action]:
    """Also those that were told before to leave later than that."""
    for process in processes:
        ends = process.killed_at is not None or process.dumped_at is not None
        if not ends and (process.stop_by is None or process.stop_by > by):
            yield Stop(process=process, by=by)
