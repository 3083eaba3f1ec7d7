"""Simulated worker processes, whose throughput follows from their number of threads."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cmdbus.settings import ThreadRange
from cmdbus.worker.load_sample import LoadSample
from cmdbus.worker.thread_policy import ThreadPolicy

#: Threads, and seconds since the start.
History = list[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """Handlers wait for `io` seconds, and compute for `cpu` seconds under the interpreter lock.
    Each session makes the wait longer by this share. Without `arrivals`, commands always wait."""

    io: float = 0.0
    cpu: float = 0.0
    contention: float = 0.0
    arrivals: float = float("inf")
    #: Threads that are awake at most: for quick commands no more are woken.
    awake: int = 1000
    #: CPUs that others leave to this process.
    cpus: float = 1.0

    def capacity(self, threads: int) -> float:
        """Commands a second with this number of threads."""
        wait = self.io * (1 + self.contention * (threads - 1) ** 2) + self.cpu / self.cpus
        waited = threads / wait
        return min(waited, self.cpus / self.cpu) if self.cpu else waited

    def best(self, bounds: ThreadRange) -> float:
        return max(map(self.capacity, range(bounds.least, bounds.most + 1)))

    def sample(self, threads: int, noise: float) -> LoadSample:
        """Of a second."""
        capacity = self.capacity(threads)
        rate = min(self.arrivals, capacity) * noise
        starved = self.arrivals < capacity
        return LoadSample(
            seconds=1.0,
            ended=round(rate),
            busy=threads * rate / capacity if starved else min(self.awake, threads * 0.97),
            claims=round(rate) + 1,
            empty=round(rate / 2) if starved else 0,
            cpu=min(self.cpus, rate * self.cpu),
            machine=0.5,
        )


def run(
    policy: ThreadPolicy, plant: Callable[[float], Plant], seconds: int, *, noise: float = 0.03
) -> History:
    """The number of threads in each second; `plant` is the one at that time."""
    dice = random.Random(seconds)
    history: History = []
    for second in range(seconds):
        factor = max(0.5, dice.gauss(1.0, noise)) if noise else 1.0
        history.append((policy.threads, plant(float(second)).capacity(policy.threads)))
        policy.observe(plant(float(second)).sample(policy.threads, factor))
        assert policy.bounds.least <= policy.threads <= policy.bounds.most
    return history


def run_together(
    policies: Sequence[ThreadPolicy], plant: Plant, cpus: float, seconds: int
) -> list[tuple[int, float]]:
    """Processes that share so many CPUs: the steps and the throughput of all in each second."""
    dice, history = random.Random(seconds), list[tuple[int, float]]()
    for _ in range(seconds):
        before = [policy.threads for policy in policies]
        wanted = [plant.capacity(threads) for threads in before]
        share = min(1.0, cpus / (sum(wanted) * plant.cpu))
        for policy, rate in zip(policies, wanted, strict=True):
            rate *= share * dice.gauss(1.0, 0.03)
            sample = LoadSample(
                seconds=1.0,
                ended=round(rate),
                busy=policy.threads * 0.97,
                claims=round(rate) + 1,
                cpu=rate * plant.cpu,
                machine=1.0 if share < 1 else sum(wanted) * plant.cpu / cpus,
            )
            policy.observe(sample)
        changed = sum(policy.threads != old for policy, old in zip(policies, before, strict=True))
        history.append((changed, share * sum(wanted)))
    return history


def steps(history: History, since: int = 0) -> int:
    """How often the number has changed."""
    numbers = [threads for threads, _ in history[since:]]
    return sum(one != two for one, two in pairwise(numbers))
