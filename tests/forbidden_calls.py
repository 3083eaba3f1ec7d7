"""A seccomp filter, as container runtimes install it."""

import ctypes
import os
import struct

PIDFD_OPEN = 434
FLOCK = 73 if os.uname().machine == "x86_64" else 32
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def forbid(number: int, error: int) -> None:
    """The system call fails from now on in this process and its children."""
    instructions = (
        (_LOAD, 0, 0, 0),
        (_EQUALS, 0, 1, number),
        (_RETURN, 0, 0, _ERROR | error),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in instructions))
    program = _Program(len(instructions), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program)) == 0, ctypes.get_errno()
