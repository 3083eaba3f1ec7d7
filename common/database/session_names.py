"""Names of a node's database sessions (application_name), and its number.

A process of a node names all of its sessions `<schema>:<number>`, where the number is its
incarnation's in base 36: by that name a rescue ends the sessions of a dead process, and
preflight counts those of other nodes. With the longest schema a name has 62 characters;
PostgreSQL cuts names off at 63 without an error.
"""

import os
import re
import socket
from hashlib import sha256

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
#: The largest incarnation, and its base-36 digits.
_MAX, _LENGTH = 2**63 - 1, 13
#: For PostgreSQL and Python: the name of any process of any schema.
PATTERN = rf"^[a-z_][a-z0-9_]{{0,47}}:[0-9a-z]{{{_LENGTH}}}$"


def session_name(schema: str, incarnation: int) -> str:
    number = ""
    for _ in range(_LENGTH):
        incarnation, digit = divmod(incarnation, len(_DIGITS))
        number = _DIGITS[digit] + number
    return f"{schema}:{number}"


def node_number(supervisor: int | None) -> int:
    """The same for all processes of the supervisor that has this pid, or of this process."""
    digest = sha256(f"{socket.gethostname()}:{supervisor or os.getpid()}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def incarnation_of(name: str) -> int | None:
    """None if it is not the name of a node's session."""
    if not re.match(PATTERN, name):
        return None
    number = int(name.rpartition(":")[2], 36)
    return number if number <= _MAX else None  # Any role can choose a name.
