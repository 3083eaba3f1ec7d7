"""Whether the application has replaced what threads of the system are made of, as gevent and
eventlet do: then handlers wait for each other, and a worker's own threads for them."""

import _thread
import select
from types import BuiltinFunctionType

from cmdbus.clock import current_sleep

#: Replaced clocks and wrapped Thread.start or Thread.run do no harm.
_FUNCTIONS = (
    ("_thread.start_new_thread", lambda: _thread.start_new_thread),
    ("_thread.allocate_lock", lambda: _thread.allocate_lock),
    ("time.sleep", current_sleep),
    ("select.select", lambda: getattr(select, "select", None)),
)


def patched() -> str:
    """The patched functions and the remedy, in one sentence; empty if there are none."""
    found = [
        (name, getattr(function, "__module__", None) or type(function).__module__)
        for name, get in _FUNCTIONS
        if not isinstance(function := get(), BuiltinFunctionType)
    ]
    if not found:
        return ""
    names = ", ".join(name for name, _ in found)
    modules = ", ".join(sorted({str(module) for _, module in found}))
    return (
        f"the standard library is patched ({names} by {modules}): handlers run in threads, which "
        f"must be the system's; take the patching (monkey.patch_all() or the like) out of what "
        f"the app imports"
    )
