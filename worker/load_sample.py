"""What a worker process has done in some seconds, in numbers. Pure."""

from dataclasses import dataclass

#: Ended executions below which throughput says nothing.
_MIN_ENDED = 10
#: Busy threads, as a share of all, from which on commands wait.
_FULL = 0.85
#: Busy threads, as a share of all, below which threads are idle. From it on commands wait if no
#: claim found the queue empty, as commands also take time outside of their handlers.
_IDLE = 0.6
#: Share of the claims that may find nothing while commands wait.
_MAX_EMPTY = 0.1
#: CPUs that a process uses while its threads wait for the interpreter lock.
_CPU_BUSY = 0.9
#: Share of the machine's CPUs from which on all of them are busy.
_MACHINE_BUSY = 0.95
#: CPUs from which on a process contributes to that.
_CPU_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """Of some seconds of one process."""

    seconds: float = 0.0
    #: Executions that have ended.
    ended: int = 0
    #: Seconds in which threads ran handlers, summed over the threads.
    busy: float = 0.0
    #: Claims, and those of them that found no command.
    claims: int = 0
    empty: int = 0
    #: Seconds of CPU that the process used.
    cpu: float = 0.0
    #: Seconds in which the CPUs that it may use were busy, as a part of all.
    machine: float = 0.0

    def __add__(self, other: "LoadSample") -> "LoadSample":
        return LoadSample(
            seconds=self.seconds + other.seconds,
            ended=self.ended + other.ended,
            busy=self.busy + other.busy,
            claims=self.claims + other.claims,
            empty=self.empty + other.empty,
            cpu=self.cpu + other.cpu,
            machine=self.machine + other.machine,
        )

    @property
    def rate(self) -> float:
        return self.ended / self.seconds

    @property
    def busy_threads(self) -> float:
        return self.busy / self.seconds

    @property
    def cpus(self) -> float:
        return self.cpu / self.seconds

    @property
    def is_telling(self) -> bool:
        """Whether its throughput can be compared with another one's."""
        return self.ended >= _MIN_ENDED

    @property
    def is_cpu_busy(self) -> bool:
        """Whether more threads would find no CPU time."""
        machine = self.machine / self.seconds
        return self.is_bound_by_one_cpu or (machine >= _MACHINE_BUSY and self.cpus >= _CPU_SHARE)

    @property
    def is_bound_by_one_cpu(self) -> bool:
        """Its threads wait for the interpreter lock."""
        return self.cpus >= _CPU_BUSY

    def has_idle_threads(self, threads: int) -> bool:
        return self.busy_threads < _IDLE * threads

    def has_waiting_work(self, threads: int) -> bool:
        share = self.busy_threads / threads
        return share >= _FULL or (share >= _IDLE and self.finds_work)

    @property
    def finds_work(self) -> bool:
        """Whether claims find commands as soon as they ask for some."""
        return self.claims > 0 and self.empty <= _MAX_EMPTY * self.claims
