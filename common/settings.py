"""The settings of a supervisor as one value: its processes are made from nothing else."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from cmdbus.timeouts import Timeouts

#: Payload bytes that a process claims ahead of its threads.
CLAIM_BYTES = 8 * 1024**2
#: The app that runs if neither an app nor a database is named, and its timeouts unless some are
#: given: so short that a user sees a hang end.
_DEMO = "cmdbus.worker.demo:registry"
_DEMO_TIMEOUTS = Timeouts(statement=2.0, pool=3.0, lease=3.0, thread=4.0, watchdog=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds. The command line checks them; see `cmdbus.supervisor.cli.setting`."""

    #: MODULE:REGISTRY; None is the demo.
    app: str | None = None
    #: May hold a password; None is the embedded PostgreSQL.
    dsn: str | None = field(default=None, repr=False)
    schema: str = "cmdbus"
    procs: int = 1
    threads: int = 8
    #: Empty: all that the app handles.
    domains: tuple[str, ...] = ()
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

    @property
    def is_demo(self) -> bool:
        return self.app == _DEMO

    def with_demo(self) -> "Settings":
        """The demo's where neither an app nor a database is named; else these."""
        if self.app is not None or self.dsn is not None:
            return self
        given = self.timeouts != Timeouts()
        return replace(self, app=_DEMO, timeouts=self.timeouts if given else _DEMO_TIMEOUTS)
