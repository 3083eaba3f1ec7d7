"""The supervisor's decisions: a function of its fleet, its limits and the time. Pure.

The rules, in the order in which they are asked:

    a process past its stop deadline                            is killed
    a main thread past its due time (hung, or without the GIL)  its stacks are dumped, then killed;
                                                                also if it stops and runs commands
    a slot overdue for longer than the watchdog allows          stops, its successor starts
    more stuck threads or pool exhaustions than are healthy     stops, its successor starts
    a post without a process                                    gets one, after a pause if its last
                                                                processes exited early
    an older application, too many commands, bytes or seconds   its successor starts, then it stops
    degraded for longer than the watchdog timeout while         the same
    another process is healthy, or reaches the database

A planned replacement starts before its predecessor stops, one post at a time: the next one
waits until that predecessor has exited. While the fleet stops, only a steward has a successor, to
renew leases and to release claims. After the supervisor itself stalled only stop deadlines are
enforced. All times are seconds of one monotonic clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cmdbus.board.health import MAX_STUCK, Health
from cmdbus.board.records import Restart, Role, Verdict
from cmdbus.settings import Settings
from cmdbus.supervisor.fleet_view import FleetView, ProcessView
from cmdbus.supervisor.stacks import DUMP_SECONDS
from cmdbus.timeouts import BOOT_SECONDS, OUTAGE_NOTICE_SECONDS, RESCUE_SECONDS

#: Worker processes beyond the wanted number: a replacement starts before its predecessor stops.
#: Those with numbers that are no longer wanted do not count.
MAX_SURGE = 1
#: Seconds added to the furthest due time that a process may show, for a busy machine.
_SPARE_SECONDS = 10.0
#: Samples of too much memory in a row before a process is replaced: one peak is no leak.
RSS_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    role: Role
    number: int
    #: None for the first process of its post, and after an exit.
    reason: Restart | None = None
    #: For the log: the limit that its predecessor has reached.
    why: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    process: ProcessView
    by: float
    #: None if no successor is needed.
    reason: Restart | None = None
    #: STUCK or CRITICAL; NONE for a planned stop.
    verdict: Verdict = Verdict.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    process: ProcessView


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    process: ProcessView
    verdict: Verdict
    #: Whether an overdue slot counts as the cause; not after the supervisor itself stalled.
    measured: bool = True


Action = Start | Stop | Dump | Kill


def seats_for(procs: int) -> int:
    """The size of a board on which this number of workers can be doubled."""
    return 3 * procs + 8


def max_procs(seats: int) -> int:
    """The number of workers that fit on such a board. A third of the seats, and four, are left for
    the steward, for quarantine, for successors, and for the dead whose claims are not released."""
    return (seats - 4) * 2 // 3


def decide(fleet: FleetView, settings: Settings, now: float) -> list[Action]:
    """At most one action for each process, and one start for each post."""
    actions = [
        action for p in fleet.processes for action in _check_process(p, fleet, settings, now)
    ]
    if fleet.stop_by is not None:
        rest = _without(fleet.processes, actions)
        return [*actions, *_stop(fleet, rest, fleet.stop_by, now)]
    actions += _succeed(_without(fleet.processes, actions), settings, now)
    rest = _without(fleet.processes, actions)
    return [*actions, *_fill(fleet, rest, settings, now)]


def _without(processes: Iterable[ProcessView], actions: Iterable[Action]) -> list[ProcessView]:
    touched = {id(action.process) for action in actions if not isinstance(action, Start)}
    return [process for process in processes if id(process) not in touched]


def _check_process(
    process: ProcessView, fleet: FleetView, settings: Settings, now: float
) -> Iterator[Action]:
    if process.killed_at is not None:
        return
    if process.dumped_at is not None:
        # After the supervisor itself stalled, the process may still recover, until its stop
        # deadline or the fleet's.
        is_final = any(by is not None and now >= by for by in (process.stop_by, fleet.stop_by))
        if (fleet.detects_hangs or is_final) and now >= process.dumped_at + DUMP_SECONDS:
            yield Kill(process=process, verdict=Verdict.HUNG)
    elif process.stop_by is not None and now >= process.stop_by:
        verdict = process.stop_verdict or Verdict.LATE
        yield Kill(process=process, verdict=verdict, measured=fleet.detects_hangs)
    elif not fleet.detects_hangs:
        return
    elif _is_hung(process, settings, now):
        yield Dump(process=process)
    elif process.is_staying and fleet.stop_by is None and process.role is not Role.STEWARD:
        verdict = _verdict(process, settings, now)
        if verdict is not Verdict.NONE:
            stuck = verdict is Verdict.STUCK or process.levels.stuck_threads > MAX_STUCK
            yield Stop(
                process=process,
                by=now + settings.drain_timeout,
                reason=Restart.STUCK if stuck else Restart.DEGRADED,
                verdict=verdict,
            )


def _is_hung(process: ProcessView, settings: Settings, now: float) -> bool:
    """A process that stops sends heartbeats only as long as its threads run commands: after
    that it may wait for the database until its stop deadline."""
    drains = process.role is not Role.STEWARD and process.latest_due is not None
    if process.due is None or not (process.stop_by is None or drains):
        return False
    return not is_ahead(process.due, settings.timeouts.watchdog, now)


def is_ahead(due: float, watchdog: float, now: float) -> bool:
    """Whether a main thread's due time is in the future. One further ahead than any process may
    set it counts as past: it is garbage, or from a clock that an application has replaced."""
    return now < due <= now + max(watchdog, BOOT_SECONDS) + _SPARE_SECONDS


def _verdict(process: ProcessView, settings: Settings, now: float) -> Verdict:
    """Why the process must stop claiming immediately; NONE if it need not."""
    if process.levels.database_away:
        return Verdict.NONE
    due = process.latest_due
    if due is not None and now >= due + settings.timeouts.stuck_grace:
        return Verdict.STUCK
    return Verdict.CRITICAL if process.levels.health is Health.CRITICAL else Verdict.NONE


def _fill(
    fleet: FleetView, rest: Sequence[ProcessView], settings: Settings, now: float
) -> Iterator[Action]:
    """A process for each post that has none, and none for numbers beyond the wanted ones."""
    staying = {p.post for p in fleet.processes if p.is_staying}
    # Those that leave as fewer are wanted must not keep the others from having successors.
    workers = [p for p in fleet.processes if p.role is Role.WORKER and p.number < fleet.wanted]
    living = sum(p.is_alive(now) for p in workers)
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
        elif any(p.is_alive(now) for p in fleet.processes if p.role is role):
            continue  # Two stewards would renew and release the same claims.
        yield Start(role=role, number=number)
    for process in rest:
        if process.is_staying and process.role is Role.WORKER and process.number >= fleet.wanted:
            yield Stop(process=process, by=now + settings.drain_timeout)
    yield from _replace(fleet, rest, settings, now, living)


def _replace(
    fleet: FleetView, rest: Sequence[ProcessView], settings: Settings, now: float, living: int
) -> Iterator[Action]:
    """One planned replacement at a time."""
    workers = [
        p for p in rest if p.is_staying and p.role is Role.WORKER and p.number < fleet.wanted
    ]
    if len({p.number for p in workers}) < fleet.wanted or living > fleet.wanted:
        return  # A process is missing, or a replacement is under way.
    if not all(p.ready for p in workers):
        return
    outdated = list(_outdated(workers, fleet, settings, now))
    for process, reason, why in outdated:
        if fleet.not_before.get(process.post, now) > now:
            continue  # Its last successor exited early.
        yield Start(role=Role.WORKER, number=process.number, reason=reason, why=why)
        return
    if outdated:
        return
    for process in rest:
        if process.is_staying and process.role is Role.STEWARD and process.app < fleet.app:
            yield Stop(process=process, by=now + settings.drain_timeout, reason=Restart.RELOADED)


def _outdated(
    workers: Sequence[ProcessView], fleet: FleetView, settings: Settings, now: float
) -> Iterator[tuple[ProcessView, Restart, str]]:
    """Processes to replace, each with the reason and the limit that it has reached."""
    for process in workers:
        if process.app < fleet.app:
            yield process, Restart.RELOADED, ""
    for process in workers:
        if why := _used_up(process, settings, now):
            yield process, Restart.RECYCLED, why
    if not fleet.detects_hangs:
        return
    watchdog = settings.timeouts.watchdog
    healthy = any(p.levels.health is Health.HEALTHY for p in workers)
    for process in workers:
        since = process.degraded_since
        if since is None or now < since + watchdog:
            continue
        away = process.levels.database_away
        if _others_reach_database(fleet, since, watchdog, now) if away else healthy:
            yield process, Restart.DEGRADED, ""


def _others_reach_database(fleet: FleetView, since: float, watchdog: float, now: float) -> bool:
    """Whether other processes have reached the database for a whole watchdog timeout: one that
    cannot is itself broken (out of descriptors, say). Others that have not noticed an outage, or
    have only just recovered from it, do not count."""
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


def _used_up(process: ProcessView, settings: Settings, now: float) -> str:
    """The limit that the process has reached; empty if none."""
    max_commands = settings.max_commands
    if max_commands is not None and process.commands >= max_commands * (1.0 + process.spread):
        return f"it has run {process.commands} commands (--max-commands {max_commands})"
    max_age = settings.max_age
    if max_age is not None and now >= process.born + max_age * (1.0 + process.spread):
        return f"it is {now - process.born:.0f} s old (--max-age {max_age:g})"
    if process.rss_over >= RSS_SAMPLES and settings.max_rss_bytes is not None:
        used, allowed = process.rss_bytes / 2**20, settings.max_rss_bytes / 2**20
        return f"it uses {used:.0f} MiB of memory (--max-rss {allowed:.0f}M)"
    return ""


def _succeed(processes: Iterable[ProcessView], settings: Settings, now: float) -> Iterator[Action]:
    workers = [p for p in processes if p.is_staying and p.role is Role.WORKER]
    for process in workers:
        if any(
            p.ready and p.number == process.number and p.generation > process.generation
            for p in workers
        ):
            yield Stop(process=process, by=now + settings.drain_timeout)


def _stop(fleet: FleetView, rest: Sequence[ProcessView], by: float, now: float) -> Iterator[Action]:
    """The steward stops last: it renews the leases of the others and releases their claims. If it
    has died, another one does."""
    yield from _stop_by(by, (p for p in rest if p.role is not Role.STEWARD))
    in_time = now < by + RESCUE_SECONDS
    alive = [p.role for p in fleet.processes if p.is_alive(now)]
    if any(role is not Role.STEWARD for role in alive) or (fleet.unrescued and in_time):
        post = Role.STEWARD, 0
        if in_time and Role.STEWARD not in alive and fleet.not_before.get(post, now) <= now:
            yield Start(role=Role.STEWARD, number=0)
        return
    yield from _stop_by(now + RESCUE_SECONDS, (p for p in rest if p.role is Role.STEWARD))


def _stop_by(by: float, processes: Iterable[ProcessView]) -> Iterator[Action]:
    """Also processes that were ordered to stop by a later deadline."""
    for process in processes:
        ending = process.killed_at is not None or process.dumped_at is not None
        if not ending and (process.stop_by is None or process.stop_by > by):
            yield Stop(process=process, by=by)
