"""What runs inside the children: the command workers. Start reading at thread_pool.py."""

if __name__ != "cmdbus.worker":
    raise ImportError(f"this directory is cmdbus.worker, not {__name__}: pip install -e .")

from cmdbus.worker.worker import Worker

__all__ = ["Worker"]
