"""The processes that run commands, and the steward. Start reading at pipeline/."""

if __name__ != "cmdbus.worker":
    raise ImportError(f"this directory is cmdbus.worker, not {__name__}: pip install -e .")

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cmdbus.worker.worker import Worker as Worker

__all__ = ["Worker"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Loaded when it is asked for: stewards and preflights run no commands."""
    if name != "Worker":
        raise AttributeError(f"module 'cmdbus.worker' has no attribute {name!r}")
    from cmdbus.worker.worker import Worker

    return Worker
