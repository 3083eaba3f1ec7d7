"""The project of this app in a database, and the workers of django-tasks-db that run its tasks."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from lab.instances import SCRIPTS

from benches.yard import Yard

_ENQUEUE = """
import django; django.setup()
from benches.orm.tasks import enqueue_for_peer; enqueue_for_peer({count})"""
_CLEAR = "TRUNCATE django_tasks_database_dbtaskresult"
_DRAINED = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))
    FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'"""
_WORKER = ["-m", "django", "db_worker", "--queue-name", "*", "--backend", "peer", "--batch"]
_WORKER_OPTIONS = ["--no-startup-delay", "--no-reload", "--verbosity", "0"]
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Project:
    dsn: str

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the processes that have Django."""
        return {"DJANGO_SETTINGS_MODULE": "benches.orm.settings", "CMDBUS_DSN": self.dsn}

    def migrate(self) -> None:
        self._await(self._start("-m", "django", "migrate", "--run-syncdb", "--verbosity", "0"))

    def drain_by_peer(self, here: Yard, count: int, processes: int) -> float:
        """Tasks a second by workers that find all of them, from the first start to the last end."""
        here.connection.execute(_CLEAR)
        self._await(self._start("-c", _ENQUEUE.format(count=count)))
        workers = [self._start(*_WORKER, *_WORKER_OPTIONS) for _ in range(processes)]
        for worker in workers:
            self._await(worker)
        [(done, seconds)] = here.connection.execute(_DRAINED).fetchall()
        if done != count:
            raise RuntimeError(f"{count} tasks were enqueued, the db_worker completed {done}")
        return count / float(seconds)

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(SCRIPTS)}
        return subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL
        )

    def _await(self, process: "subprocess.Popen[bytes]") -> None:
        try:
            code = process.wait(_PATIENCE_S)
        finally:
            process.kill()
        if code:
            raise RuntimeError(f"{process.args!r} has exited with {code}")
