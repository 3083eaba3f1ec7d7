"""The settings of a supervisor as one value: its processes are made from nothing else."""

from dataclasses import dataclass, field
from pathlib import Path

from cmdbus.selection import ALL_PRIORITIES
from cmdbus.timeouts import Timeouts

#: Payload bytes that a process claims ahead of its threads.
CLAIM_BYTES = 8 * 1024**2
#: Seconds that a poll interval has at least.
MIN_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ThreadRange:
    """The bounds of a number of threads that a worker process finds by itself."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds. The command line checks them; see `cmdbus.supervisor.cli.setting`."""

    #: MODULE:REGISTRY.
    app: str | None = None
    #: May hold a password; None is the embedded PostgreSQL.
    dsn: str | None = field(default=None, repr=False)
    schema: str = "cmdbus"
    procs: int = 1
    threads: int | ThreadRange = 8
    #: Empty: all that the app handles.
    domains: tuple[str, ...] = ()
    #: Types that need others are not run.
    tags: tuple[str, ...] = ()
    #: The first and the last one that are claimed.
    priorities: tuple[int, int] = ALL_PRIORITIES
    #: Percent of the claims that take the oldest command, whatever its priority.
    age_share: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    poll_interval: float = 60.0
    #: False where LISTEN does not work: workers then poll.
    listen: bool = True
    wake_jitter_ms: int = 0
    drain_timeout: float = 30.0
    claim_bytes: int = CLAIM_BYTES
    #: Commands after which a process is replaced; None for never.
    max_commands: int | None = None
    max_rss_bytes: int | None = None
    max_age: float | None = None
    #: Host and port of probes, metrics and status.
    http: tuple[str, int] | None = None
    name: str = "cmdbus"
    runtime_dir: Path | None = None
    log_format: str = "text"
    log_level: str = "info"
    #: Ends when everything claimable is done.
    drain: bool = False
    #: Reloads when a file of the application changes.
    reload: bool = False

    @property
    def thread_range(self) -> ThreadRange:
        """Of equal bounds if the number is fixed."""
        threads = self.threads
        return threads if isinstance(threads, ThreadRange) else ThreadRange(threads, threads)
