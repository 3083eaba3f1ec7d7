"""The token of --auth token: made at the first use, and kept where only its owner can read it."""

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from cmdbus.errors import CmdbusError

_BYTES = 32
#: Of a token that an operator has written there.
_TOKEN = re.compile(r"[!-~]{32,512}")
_MAX_BYTES = 1024


class TokenFileError(CmdbusError):
    """The file cannot be used; the message says why, without what is in it."""


def default_path() -> Path:
    """In the user's state directory; that of root is the system's."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if not given and os.geteuid() == 0:
        return Path("/var/lib/cmdbus/web-token")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".local/state"
    return base / "cmdbus/web-token"


def read_or_make(file: Path) -> tuple[str, bool]:
    """The token, and whether it was made now."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = _made(file)
        return _read(file), made
    except OSError as error:
        raise TokenFileError(f"the token file {file} cannot be used: {error.strerror}") from None


def _made(file: Path) -> bool:
    """Whole or not at all, however many start at the same time."""
    if file.exists():
        return False
    draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "w") as opened:
            opened.write(f"{secrets.token_urlsafe(_BYTES)}\n")
            opened.flush()
            os.fsync(opened.fileno())
        os.link(draft, file)
        return True
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _read(file: Path) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise TokenFileError(f"the token file {file} is no ordinary file")
        # As PostgreSQL takes its key: a secret of the system's may be given to a group.
        is_systems = found.st_uid == 0 != os.geteuid()
        if found.st_mode & (0o027 if is_systems else 0o077):
            raise TokenFileError(
                f"other users may read the token file {file}, so its token is no secret: remove "
                f"the file, and a new one is made"
            )
        if found.st_uid not in (0, os.geteuid()):
            raise TokenFileError(f"the token file {file} belongs to another user")
        text = os.read(descriptor, _MAX_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if not _TOKEN.fullmatch(text):
        raise TokenFileError(
            f"the token file {file} must hold one line of 32 to 512 ASCII characters: remove the "
            f"file, and a new one is made"
        )
    return text
