"""The schedule of a run: everything that is drawn, drawn from the seed alone.

The same seed, minutes and kinds give the same plan, whatever the machine does meanwhile.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

# Each declares its faults.
from fault_injection import (
    command_faults,  # noqa: F401
    failpoint_faults,  # noqa: F401
    machine_faults,  # noqa: F401
    network_faults,  # noqa: F401
    process_faults,  # noqa: F401
    restore,  # noqa: F401
    second_supervisor,  # noqa: F401
    server_faults,  # noqa: F401
)
from fault_injection.kinds import KINDS, Fault, Kind, Needs
from fault_injection.plan import ALL_DOMAINS, Options, Plan, Producing

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

#: Between two gusts, and within one.
_PAUSE_S, _SPREAD_S = (1.0, 4.5), 1.0
_FIRST_S = 1.0
#: Seconds of a run from which on its commands are for all domains. In a shorter one they are for
#: a few, so that each has its turn in time also on a busy machine.
_ALL_DOMAINS_S, _FEW_DOMAINS = 60.0, 4
#: Seconds of a run from which on instances have several processes, and there are several producers.
#: A shorter one is for tests: everything of it ends soon, and is checked.
_SEVERAL_S, _TWO_DOMAINS = 1.5, 2
#: Seconds of rest after a fault that is apart.
_APART_S = 20.0
#: Of what producers send otherwise, where there are only races: a fleet that is killed all the
#: time must still find time to rest, or no worker would ever arm.
_IN_RACES = 0.4


def make(seed: int, minutes: float, only: Sequence[str] = (), *, hosts: bool = False) -> Plan:
    generator = random.Random(f"plan:{seed}")
    storm_s = round(60 * minutes, 1)
    options = _options(generator, seed)
    if storm_s < _SEVERAL_S:
        options = replace(options, procs=1)
    names = [name for group in only for name in GROUPS.get(group, [group])]
    names = names or [
        name for name in GROUPS["all"] if hosts or KINDS[name].needs is not Needs.HOSTS
    ]
    kinds = [KINDS[name] for name in names]
    turns = kinds if only else [kind for kind in kinds if not kind.at_failpoint]
    share = _IN_RACES if set(names) <= set(GROUPS["races"]) else 1.0
    producers = [_producer(generator, number, share) for number in range(3)]
    of_pgmq = [_producer_of_pgmq(seed, number, share) for number in (3, 4)]
    return Plan(
        seed=seed,
        storm_s=storm_s,
        options=options,
        domains=_domains(storm_s),
        producers=((*producers, *of_pgmq) if storm_s >= _SEVERAL_S else (producers[0], of_pgmq[0])),
        faults=tuple(_faults(generator, storm_s, kinds, turns, options.instances)),
    )


def _domains(storm_s: float) -> int:
    if storm_s < _SEVERAL_S:
        return _TWO_DOMAINS
    return _FEW_DOMAINS if storm_s < _ALL_DOMAINS_S else ALL_DOMAINS


def _options(generator: random.Random, seed: int) -> Options:
    lease = generator.choice((2.0, 3.0, 4.0))
    watchdog = lease + 3.0
    return Options(
        instances=2,
        procs=generator.choice((2, 3)),
        threads=generator.choice((3, 4, 6)),
        statement=lease - 0.5,
        pool=lease,
        lease=lease,
        thread=lease + 1.0,
        watchdog=watchdog,
        drain=_drain(generator.choice((2.0, 4.0)), watchdog, seed),
        poll=generator.choice((3.0, 10.0)),
        max_rss_mib=192,
        max_commands=generator.choice((1_500, 5_000)),
        # As in _drain.
        claim_bytes=random.Random(f"claim bytes:{seed}").choice(("64K", "1M", "8M")),
    )


def _drain(short: float, watchdog: float, seed: int) -> float:
    """One in three is longer than a process may go without a heartbeat. By a generator of its
    own: known seeds keep their schedules."""
    return random.Random(f"drain:{seed}").choice((short, short, watchdog + 2.0))


def _producer(generator: random.Random, number: int, share: float) -> Producing:
    return Producing(
        number=number,
        seed=generator.randrange(10**9),
        calls_per_s=share * generator.randint(15, 40),
        by_proxy=number == 0,
    )


def _producer_of_pgmq(seed: int, number: int, share: float) -> Producing:
    """As in _drain."""
    generator = random.Random(f"pgmq:{seed}:{number}")
    return Producing(
        number=number,
        seed=generator.randrange(10**9),
        calls_per_s=share * generator.randint(3, 8),
        by_proxy=number == 4,
        is_of_pgmq=True,
    )


def _faults(
    generator: random.Random,
    storm_s: float,
    kinds: Sequence[Kind],
    turns: Sequence[Kind],
    instances: int,
) -> list[Fault]:
    """Gusts of one to three. Each of `turns` has its own before they are drawn by weight."""
    deck = list(turns)
    generator.shuffle(deck)
    faults: list[Fault] = []
    at = _FIRST_S
    while at < storm_s:
        for _ in range(generator.choice((1, 1, 2, 3))):
            drawn = generator.choices(kinds, [kind.weight for kind in kinds])[0]
            kind = deck.pop() if deck else drawn
            faults.append(
                Fault(
                    number=0,
                    at=round(at + generator.uniform(0, _SPREAD_S), 2),
                    kind=kind.name,
                    instance=generator.randrange(instances),
                    lasts=round(generator.uniform(*kind.lasts), 1),
                    rand=round(generator.random(), 4),
                )
            )
            if kind.apart:
                at += faults[-1].lasts + _APART_S
                break
        at += generator.uniform(*_PAUSE_S)
    faults.sort(key=lambda fault: fault.at)
    return [replace(fault, number=number) for number, fault in enumerate(faults)]
