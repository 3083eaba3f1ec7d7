"""What a supervisor was told, as one value: its processes are made from nothing else."""

from dataclasses import dataclass, field
from pathlib import Path

from cmdbus.timeouts import Timeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds. Checked where it is made; see `cmdbus.supervisor.cli`."""

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
    #: False where nobody can LISTEN: then the poll interval is the pace.
    listen: bool = True
    wake_jitter_ms: int = 0
    drain_timeout: float = 30.0
    #: A process is replaced after so many; None never.
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
