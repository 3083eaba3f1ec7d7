"""Processes that cannot start, for a reason that no restart cures. Pure."""

from cmdbus.board.records import Role
from cmdbus.supervisor.fleet_view import Post, ProcessView


class BootFailures:
    """Since the last worker became ready."""

    def __init__(self) -> None:
        #: The reasons that were logged.
        self._reasons: set[str] = set()
        #: Of workers, until the first one of the fleet is ready.
        self._posts: set[Post] = set()
        self._had_ready_worker = False

    def ready(self, process: ProcessView) -> None:
        if process.role is Role.WORKER:
            self._reasons.clear()
            self._posts.clear()
            self._had_ready_worker = True

    def failed(self, process: ProcessView, reason: str) -> str:
        """The reason, with its traceback, as the log should show it: in full once."""
        if process.role is Role.WORKER and not self._had_ready_worker:
            self._posts.add(process.post)
        if not reason:
            return ""
        text = ": the same reason as before" if reason in self._reasons else f": {reason}"
        self._reasons.add(reason)
        return text

    def is_final(self, wanted: int) -> bool:
        """Each worker has failed, and none was ever ready."""
        return len(self._posts) >= wanted
