"""What will happen in a run: everything that is drawn, drawn from the seed alone. Pure.

The same seed, minutes and kinds give the same plan, whatever the machine does meanwhile.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from cmdbus import failpoints as points

#: More than the 64 domains for which a board has entries.
ALL_DOMAINS = 79


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault."""

    name: str
    about: str
    #: Relative to the others', once each kind has had its turn.
    weight: float = 1
    #: How long it lasts, in seconds: from, to.
    lasts: tuple[float, float] = (0.0, 0.0)
    #: What may recover only later than others, in seconds.
    slow_by: float = 0.0
    #: Drawn only where a run asks for it, with no other fault near: it takes long, or all others
    #: would be hidden by it.
    apart: bool = False


_KINDS = (
    Kind(name="kill-worker", about="SIGKILL to a worker", weight=5),
    Kind(name="kill-workers", about="SIGKILL to all workers of an instance", weight=2),
    Kind(name="kill-steward", about="SIGKILL to a steward", weight=3),
    Kind(name="kill-supervisor", about="SIGKILL to a supervisor; it is started again", weight=2),
    Kind(name="end-supervisor", about="SIGTERM to a supervisor; it is started again"),
    Kind(name="end-worker", about="SIGTERM to a worker, which its supervisor has not sent"),
    Kind(name="stop-worker", about="SIGSTOP to a worker", weight=4, lasts=(0.5, 9.0)),
    Kind(name="stop-steward", about="SIGSTOP to a steward", weight=2, lasts=(0.5, 6.0)),
    Kind(name="stop-supervisor", about="SIGSTOP to a supervisor", lasts=(1.0, 8.0)),
    Kind(name="freeze-node", about="SIGSTOP to a whole instance", weight=2, lasts=(4.0, 9.0)),
    Kind(name="segfault", about="a handler that reads address 0", weight=2, slow_by=10),
    Kind(name="exit", about="a handler that calls os._exit", weight=2, slow_by=10),
    Kind(name="abort-later", about="a process aborts after a handler has returned", slow_by=10),
    Kind(name="gil", about="a handler that keeps the GIL for good", slow_by=30),
    Kind(name="gil-short", about="the same, with a timeout below the ladder's", slow_by=30),
    Kind(name="stuck", about="a handler that does not come back", weight=2, slow_by=15),
    Kind(name="grow", about="a handler that leaks more than --max-rss", slow_by=10),
    Kind(name="end-sessions", about="pg_terminate_backend to some sessions", weight=3),
    Kind(name="server-immediate", about="PostgreSQL stops at once, and starts"),
    Kind(name="server-fast", about="PostgreSQL stops in order, and starts"),
    Kind(name="proxy-silent", about="the network carries nothing", lasts=(1.0, 8.0)),
    Kind(name="proxy-slow", about="the network is late by 30 ms", weight=2, lasts=(1.0, 5.0)),
    Kind(name="proxy-cut", about="all connections are cut", weight=2),
    Kind(name="proxy-trickle", about="the network carries 10 bytes/s", lasts=(1.0, 6.0)),
    Kind(
        name="link-down",
        about="the link of an instance's host is down (--hosts)",
        lasts=(10.5, 14.0),
        slow_by=10,
    ),
    Kind(name="stop-backend", about="SIGSTOP to sessions' processes", lasts=(0.5, 5.0)),
    Kind(name="read-only", about="the server lets nobody write", lasts=(0.5, 5.0)),
    Kind(name="too-many", about="strangers have all connections", lasts=(0.5, 5.0)),
    Kind(name="deny", about="the database lets nobody in", lasts=(0.5, 5.0)),
    Kind(name="deadlock", about="handlers that lock each other's rows", slow_by=5),
    Kind(name="migrate", about="8 x cmdbus init, and altered tables", lasts=(0.3, 3.0)),
    Kind(name="hup", about="SIGHUP: all processes are replaced", weight=2, slow_by=20),
    Kind(name="ttin", about="SIGTTIN, later SIGTTOU", lasts=(2.0, 6.0)),
    Kind(name="second", about="a second supervisor of an instance's name", weight=2, slow_by=5),
    Kind(name="ttou", about="SIGTTOU, later SIGTTIN", lasts=(2.0, 6.0), slow_by=5),
    Kind(name="notify-storm", about="a stranger notifies 20,000 times"),
    Kind(name="snapshot", about="a REPEATABLE READ snapshot is held", lasts=(5.0, 15.0)),
    Kind(name="lock-table", about="a stranger locks a table", weight=2, lasts=(0.3, 4.0)),
    Kind(name="kill-producer", about="SIGKILL to a producer"),
    Kind(name="oom", about="a worker has no memory left, and is killed by the kernel"),
    Kind(
        name="fork-fails",
        about="an instance can start no process and no thread",
        lasts=(0.5, 2.5),
        slow_by=30,
    ),
    Kind(
        name="no-descriptors",
        about="a steward gets no more descriptors",
        lasts=(0.5, 5.0),
        slow_by=10,
    ),
    Kind(
        name="freeze-undead",
        about="a worker is killed, and cannot die",
        # Found out by the watchdog, and given up after that.
        lasts=(11.0, 13.0),
        slow_by=10,
    ),
    Kind(name="outage-70", about="PostgreSQL is away for 70 s", lasts=(70.0, 70.0), apart=True),
    Kind(name="outage-135", about="and for 135 s", lasts=(135.0, 135.0), apart=True),
    Kind(
        name="restore",
        about="PostgreSQL is restored to some seconds ago",
        lasts=(2.0, 8.0),
        slow_by=30,
        apart=True,
    ),
    Kind(name="lose-step", about="the reply to a settle-and-claim is lost"),
    Kind(name="lose-settle", about="the reply to a settlement in a transaction is lost"),
    Kind(name="lose-commit", about="the reply to a handler's COMMIT is lost"),
    Kind(name="lose-send", about="the reply to a send is lost"),
)
#: Where the moment is not drawn, but waited for.
POINTS = {
    points.AFTER_CLAIM: "whose claim is committed",
    points.BEFORE_EFFECT: "that is about to call a handler",
    points.BEFORE_COMMIT: "that is about to commit",
    points.AFTER_COMMIT: "that has committed",
    points.AFTER_RETURN: "whose handler has returned",
    points.SETTLED: "that has settled",
    points.ARMED: "that has armed",
    points.PROMOTED: "that has promoted",
    points.IN_RESCUE: "that has ended the sessions of a dead one",
    points.AFTER_RESCUE: "that has handed back",
    points.BEFORE_FORK: "that is about to fork",
    points.IN_CHILD: "that was just forked",
    points.AFTER_FORK: "that has forked",
    points.IN_REAP: "that has reaped",
}
#: Only drawn: the others alone have a turn each, unless a run asks for them.
_AMBUSHES = tuple(
    kind
    for point, who in POINTS.items()
    for kind in (
        Kind(name=f"kill-at-{point}", about=f"SIGKILL to one {who}", lasts=(4.0, 7.0), slow_by=20),
        Kind(
            name=f"freeze-at-{point}",
            about=f"SIGSTOP to one {who}",
            weight=0.4,
            lasts=(0.2, 6.0),
            slow_by=5,
        ),
    )
)
KINDS = {kind.name: kind for kind in (*_KINDS, *_AMBUSHES)}
#: For --only.
GROUPS = {
    "races": [name for name in KINDS if "-at-" in name or name.startswith("lose-")],
    "outages": [name for name in KINDS if name.startswith("outage-")],
    # None of these may cost a lease, or make a delay late.
    "mild": [
        *("hup", "ttin", "ttou", "notify-storm", "snapshot", "kill-producer", "proxy-slow"),
        *("second", "lose-step", "lose-settle", "lose-commit", "lose-send"),
    ],
    "all": [name for name, kind in KINDS.items() if not kind.apart],
}
#: They need a server of one's own.
SERVER = frozenset(
    ("server-immediate", "server-fast", "stop-backend", "too-many", "restore", *GROUPS["outages"])
)
#: They need instances on hosts of their own.
HOSTS = frozenset(("link-down",))

#: Between two gusts, and within one.
_PAUSE_S, _SPREAD_S = (1.0, 4.5), 1.0
_FIRST_S = 1.0
#: Seconds of a run from which on its commands are for all domains. In a shorter one they are for
#: a few, so that each has its turn in time also on a busy machine.
_ALL_DOMAINS_S, _FEW_DOMAINS = 60.0, 4
#: Seconds of rest after a fault that is apart.
_APART_S = 20.0
#: Of what producers send otherwise, where there are only races: a fleet that is killed all the
#: time must still find time to rest, or nobody would ever arm.
_IN_RACES = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What each instance is told; times in seconds."""

    instances: int
    procs: int
    threads: int
    statement: float
    pool: float
    lease: float
    thread: float
    watchdog: float
    drain: float
    poll: float
    max_rss_mib: int
    max_commands: int
    claim_bytes: str

    def arguments(self) -> list[str]:
        options = {
            "--statement-timeout": self.statement,
            "--pool-timeout": self.pool,
            "--visibility-timeout": self.lease,
            "--thread-timeout": self.thread,
            "--watchdog-timeout": self.watchdog,
            "--drain-timeout": self.drain,
            "--poll-interval": self.poll,
            "--max-rss": f"{self.max_rss_mib}M",
            "--max-commands": self.max_commands,
            "--claim-bytes": self.claim_bytes,
        }
        return [text for name, value in options.items() for text in (name, f"{value}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Producing:
    """One producer."""

    number: int
    seed: int
    calls_per_s: float
    #: Through the network that has faults, or directly.
    by_proxy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    number: int
    #: Seconds from the beginning of the run.
    at: float
    kind: str
    #: Which instance it is for, if it is for one.
    instance: int
    lasts: float
    #: From 0 to 1: chooses among what is there when its time comes.
    rand: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    storm_s: float
    options: Options
    #: The number of domains that commands are for.
    domains: int
    producers: tuple[Producing, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        text = " ".join(f"{f.name}={getattr(self.options, f.name)}" for f in fields(Options))
        lines = [f"seed {self.seed}, faults for {self.storm_s:g} s", f"instances: {text}"]
        lines += [
            f"producer {p.number}: seed={p.seed} calls_per_s={p.calls_per_s:g} "
            f"{'through the proxy' if p.by_proxy else 'direct'}"
            for p in self.producers
        ]
        lines += [
            f"{f.at:7.2f} s  fault {f.number:<3} {f.kind:<22} instance {f.instance}  "
            f"lasts {f.lasts:4.1f} s  dice {f.rand:.4f}"
            for f in self.faults
        ]
        return "\n".join(lines)


def make(seed: int, minutes: float, only: Sequence[str] = (), *, hosts: bool = False) -> Plan:
    dice = random.Random(f"plan:{seed}")
    options = _options(dice, seed)
    storm_s = round(60 * minutes, 1)
    names = [name for group in only for name in GROUPS.get(group, [group])]
    names = names or [name for name in GROUPS["all"] if hosts or name not in HOSTS]
    kinds = [KINDS[name] for name in names]
    turns = kinds if only else [kind for kind in kinds if kind not in _AMBUSHES]
    share = _IN_RACES if set(names) <= set(GROUPS["races"]) else 1.0
    producers = tuple(_producer(dice, number, share) for number in range(3))
    return Plan(
        seed=seed,
        storm_s=storm_s,
        options=options,
        domains=ALL_DOMAINS if storm_s >= _ALL_DOMAINS_S else _FEW_DOMAINS,
        producers=producers,
        faults=tuple(_faults(dice, storm_s, kinds, turns, options.instances)),
    )


def _options(dice: random.Random, seed: int) -> Options:
    lease = dice.choice((2.0, 3.0, 4.0))
    return Options(
        instances=2,
        procs=dice.choice((2, 3)),
        threads=dice.choice((3, 4, 6)),
        statement=lease - 0.5,
        pool=lease,
        lease=lease,
        thread=lease + 1.0,
        watchdog=lease + 3.0,
        drain=dice.choice((2.0, 4.0)),
        poll=dice.choice((3.0, 10.0)),
        max_rss_mib=192,
        max_commands=dice.choice((1_500, 5_000)),
        # Of dice of its own: known seeds keep their schedules.
        claim_bytes=random.Random(f"claim bytes:{seed}").choice(("64K", "1M", "8M")),
    )


def _producer(dice: random.Random, number: int, share: float) -> Producing:
    return Producing(
        number=number,
        seed=dice.randrange(10**9),
        calls_per_s=share * dice.randint(15, 40),
        by_proxy=number == 0,
    )


def _faults(
    dice: random.Random,
    storm_s: float,
    kinds: Sequence[Kind],
    turns: Sequence[Kind],
    instances: int,
) -> list[Fault]:
    """Gusts of one to three. Each of `turns` has its own before they are drawn by weight."""
    deck = list(turns)
    dice.shuffle(deck)
    faults: list[Fault] = []
    at = _FIRST_S
    while at < storm_s:
        for _ in range(dice.choice((1, 1, 2, 3))):
            drawn = dice.choices(kinds, [kind.weight for kind in kinds])[0]
            kind = deck.pop() if deck else drawn
            faults.append(
                Fault(
                    number=0,
                    at=round(at + dice.uniform(0, _SPREAD_S), 2),
                    kind=kind.name,
                    instance=dice.randrange(instances),
                    lasts=round(dice.uniform(*kind.lasts), 1),
                    rand=round(dice.random(), 4),
                )
            )
            if kind.apart:
                at += faults[-1].lasts + _APART_S
                break
        at += dice.uniform(*_PAUSE_S)
    faults.sort(key=lambda fault: fault.at)
    return [replace(fault, number=number) for number, fault in enumerate(faults)]
