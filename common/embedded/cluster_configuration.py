"""The files that configure an embedded PostgreSQL: postgresql.conf, pg_hba.conf, pg_ident.conf.

They stand beside the data, and are written anew before each start. Must never let the
server listen on TCP or trust anybody.
"""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cmdbus.embedded.accounts import Account, name_of
from cmdbus.errors import EmbeddedError

logger = logging.getLogger(__name__)

Setting = str | int | float | bool

_DEFAULTS: dict[str, Setting] = {
    "max_connections": 200,
    "jit": False,  # compiles for longer than our statements run
    "timezone": "UTC",
    # A container's /dev/shm has 64 MB, and systemd-logind empties it for a user who logs
    # out. The first 16 MB come out of the main memory segment, which is a plain mmap.
    "dynamic_shared_memory_type": "mmap",
    "min_dynamic_shared_memory": "16MB",
    "max_parallel_workers_per_gather": 0,
    "log_checkpoints": False,
    "log_min_error_statement": "panic",  # statements may carry payloads
    "log_line_prefix": "%m [%p] ",
}
_VOLATILE: dict[str, Setting] = {
    "fsync": False,
    "synchronous_commit": False,
    "full_page_writes": False,
}
# What makes the server private is not for the caller to set.
_OURS = {
    "data_directory",
    "config_file",
    "hba_file",
    "ident_file",
    "listen_addresses",
    "port",
    "unix_socket_directories",
    "unix_socket_group",
    "unix_socket_permissions",
    "logging_collector",
    "log_destination",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a server is started with, besides what makes it private."""

    durable: bool
    settings: dict[str, Setting]

    def __post_init__(self) -> None:
        for name in self.settings:
            if name in _OURS or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
                raise ValueError(f"{name!r} is not a setting of the embedded PostgreSQL to choose")

    def write(self, directory: Path, account: Account, sockets: Path) -> None:
        """Put the files into a cluster's directory, for a server that runs as `account`."""
        _write(directory / "pg_hba.conf", "local all all peer map=cmdbus\n", account)
        _write(directory / "pg_ident.conf", _identities(account), account)
        _write(directory / "postgresql.conf", self._text(directory, sockets), account)

    def compare_with_running(self, directory: Path) -> None:
        """Complain when the server that runs in `directory` was started with something else."""
        running = (directory / "postgresql.conf").read_text().splitlines()
        if self.durable and "fsync = off" in running:
            raise EmbeddedError(
                f"the server in {directory} runs without durability for somebody else: "
                "choose another directory, or wait until its users have left"
            )
        differing = [
            name
            for name, value in self.settings.items()
            if f"{name} = {_rendered(value)}" not in running
        ]
        if differing:
            logger.warning(
                "the server in %s runs already: %s take effect when it next starts",
                directory,
                ", ".join(differing),
            )

    def _text(self, directory: Path, sockets: Path) -> str:
        values = _DEFAULTS | ({} if self.durable else _VOLATILE) | self.settings
        values |= {
            "listen_addresses": "",
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
            "port": 5432,
            "hba_file": str(directory / "pg_hba.conf"),
            "ident_file": str(directory / "pg_ident.conf"),
        }
        return "".join(f"{name} = {_rendered(value)}\n" for name, value in values.items())


def _identities(account: Account) -> str:
    people = {account.name, name_of(os.geteuid())}
    return "".join(f'cmdbus "{name}" cmdbus\n' for name in sorted(people))


def _write(path: Path, text: str, account: Account) -> None:
    """Put a file in place whole, for the server to read and, under root, not to write."""
    fresh = path.with_name(f"{path.name}.tmp")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchown(file.fileno(), -1, account.gid)
        os.fchmod(file.fileno(), 0o640 if os.geteuid() == 0 else 0o600)
        file.write(text)
    fresh.replace(path)


def _rendered(value: Setting) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case int() | float():
            return str(value)
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
