"""What will happen in a run, as values. `schedule.py` draws it."""

from dataclasses import dataclass, fields

from fault_injection.kinds import Fault

#: More than the 64 domains for which a board has entries.
ALL_DOMAINS = 79


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of each instance; times in seconds."""

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
    #: It knows only PGMQ: a bridge makes commands of its messages.
    is_of_pgmq: bool = False


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
            f"{'through the proxy' if p.by_proxy else 'direct'}{', to PGMQ' * p.is_of_pgmq}"
            for p in self.producers
        ]
        lines += [
            f"{f.at:7.2f} s  fault {f.number:<3} {f.kind:<22} instance {f.instance}  "
            f"lasts {f.lasts:4.1f} s  dice {f.rand:.4f}"
            for f in self.faults
        ]
        return "\n".join(lines)
