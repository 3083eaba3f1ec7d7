"""The processes that run commands, and the steward. Start reading at pipeline/."""

if __name__ != "cmdbus.worker":
    raise ImportError(f"this directory is cmdbus.worker, not {__name__}: pip install -e .")

from cmdbus.worker.worker import Worker

__all__ = ["Worker"]
