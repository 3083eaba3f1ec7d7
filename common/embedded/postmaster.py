"""The server process of an embedded cluster: whether it lives, starting it, stopping it.

Believes no pid file: the process that it names may be dead, or by now another. Whoever
calls holds the cluster's `lock`.
"""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from cmdbus.clock import time
from cmdbus.embedded.cluster import Cluster
from cmdbus.embedded.cluster_configuration import Configuration
from cmdbus.embedded.directories import make_socket_directory
from cmdbus.errors import EmbeddedError

logger = logging.getLogger(__name__)

START_S = 60.0
STOP_S = 60.0
_ORPHANS_S = 10.0
_POLL_S = 0.02

# Prints whom it has sent what their postmaster would have sent.
_QUIT_ORPHANS = """
for process in /proc/[0-9]*; do
    [ "$process/cwd" -ef "$1" ] && read -r name < "$process/comm" && [ "$name" = postgres ] &&
        kill -QUIT "${process#/proc/}" && echo "${process#/proc/}"
done 2>/dev/null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmaster:
    """What a living postmaster has written into its postmaster.pid."""

    pid: int
    socket_directory: Path
    status: str  # starting, ready, stopping

    @classmethod
    def of(cls, data: Path) -> "Postmaster | None":
        """None when no server of this directory is alive, whatever the file says."""
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
            process = psutil.Process(int(lines[0]))
            # A number is not a process: it may have been given to another one since. Of
            # the command line, because root in a container may not read another's cwd.
            if str(data) not in process.cmdline():
                return None
        except (OSError, ValueError, IndexError, psutil.Error):
            return None
        lines += [""] * (8 - len(lines))
        return cls(pid=process.pid, socket_directory=Path(lines[4]), status=lines[7].strip())


def bring_up(cluster: Cluster, configuration: Configuration) -> tuple[Postmaster, bool]:
    """The running server, and whether it had to be started."""
    postmaster = _settled(cluster, time.monotonic() + START_S)
    starts = postmaster is None
    if postmaster is None:
        _clear_remains(cluster)
        _launch(cluster, configuration)
        postmaster = Postmaster.of(cluster.data)
        if postmaster is None:
            raise EmbeddedError(f"PostgreSQL ended as soon as it ran: {cluster.last_words()}")
    else:
        configuration.compare_with_running(cluster.directory)
    return postmaster, starts


def is_running(cluster: Cluster) -> bool:
    """Whether there is a server; waits while it is starting or stopping."""
    return _settled(cluster, time.monotonic() + START_S) is not None


def bring_down(cluster: Cluster, mode: Literal["fast", "immediate"]) -> None:
    """Stop the server, if one runs; returns when it has ended."""
    if is_running(cluster):
        _stop(cluster, mode)


def _settled(cluster: Cluster, deadline: float) -> Postmaster | None:
    """The running server, or None once there is none; waits while it is neither.

    Whoever started or stopped it may have been killed half-way.
    """
    while (postmaster := Postmaster.of(cluster.data)) and postmaster.status != "ready":
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the server (pid {postmaster.pid}) has been {postmaster.status or 'starting'} "
                f"for {START_S:g} s: {cluster.last_words()}"
            )
        time.sleep(_POLL_S)
    return postmaster


def _clear_remains(cluster: Cluster) -> None:
    """Make way after a postmaster that was killed.

    Its backends may still run and hold the shared memory, and its number may be a
    zombie's or by now another process's: PostgreSQL refuses to start in all of these.
    """
    left = cluster.data / "postmaster.pid"
    if not left.exists():
        return
    deadline = time.monotonic() + _ORPHANS_S
    # Asked as the server's user, for the same reason as in Postmaster.of.
    while orphans := cluster.account.run(
        "/bin/sh", "-c", _QUIT_ORPHANS, "sh", cluster.data, timeout=_ORPHANS_S
    ).stdout.split():
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"processes of a killed server are still at work in {cluster.data}: "
                f"run: kill -9 {' '.join(orphans)}"
            )
        time.sleep(_POLL_S)
    left.unlink(missing_ok=True)


def _launch(cluster: Cluster, configuration: Configuration) -> None:
    sockets = make_socket_directory(cluster.directory, cluster.account)
    configuration.write(cluster.directory, cluster.account, sockets)
    cluster.create_log()
    file = shlex.quote(str(cluster.directory / "postgresql.conf"))
    options = ["-w", "-t", f"{START_S:.0f}", "-o", f"-c config_file={file}"]
    options += ["-D", str(cluster.data), "-l", str(cluster.log)]
    cluster.run("pg_ctl", "start", *options, timeout=START_S + 5)


def _stop(cluster: Cluster, mode: Literal["fast", "immediate"]) -> None:
    options = ["-D", str(cluster.data), "-w", "-t", f"{STOP_S:.0f}"]
    try:
        cluster.run("pg_ctl", "stop", "-m", mode, *options, timeout=STOP_S + 5)
    except EmbeddedError as error:
        logger.warning("%s; stopping it at once, the next start will recover", error)
        cluster.run("pg_ctl", "stop", "-m", "immediate", *options, timeout=STOP_S + 5)
