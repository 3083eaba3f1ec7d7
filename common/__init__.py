"""The producer's API and the values that everyone shares.

Names are loaded when they are first used: the supervising process imports this
package and must never load a database driver.
"""

if __name__ != "cmdbus":
    raise ImportError(f"this directory is cmdbus, not {__name__}: pip install -e .")

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cmdbus.errors import CmdbusError as CmdbusError

_HOME = {
    "CmdbusError": "cmdbus.errors",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'cmdbus' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
