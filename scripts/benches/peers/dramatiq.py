"""dramatiq with Redis: its workers are threads, as cmdbus's are. The Redis is this run's own and
keeps its data in memory alone, which is its quickest: a crash of Redis loses them."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM, sigwait
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from benches.peers.peer import Payload, Peer, read_options
from benches.peers.times import SENT, SLEEP, write_times

_ACTOR = "work"
_START_S, _LOOK_S = 10.0, 0.05


class Dramatiq(Peer):
    name = "dramatiq"
    share = 0.2

    def __init__(self, address: str) -> None:
        """`address` is of PostgreSQL, which it does not use."""
        program = shutil.which("redis-server")
        if program is None:
            raise ModuleNotFoundError("no redis-server is on the PATH")
        self._directory = tempfile.TemporaryDirectory(prefix="cmdbus-bench-redis-")
        socket = Path(self._directory.name, "socket")
        super().__init__(f"unix://{socket}")
        command = [program, "--port", "0", "--unixsocket", str(socket), "--save", ""]
        self._server = subprocess.Popen(
            [*command, "--appendonly", "no", "--dir", self._directory.name],
            stdout=subprocess.DEVNULL,
        )
        _await_redis(self.address)
        self._broker = RedisBroker(url=self.address)
        self._actor = _actor(lambda **_: None, self._broker)

    def send(self, payloads: Sequence[Payload]) -> None:
        for payload in payloads:
            self._actor.send(**payload)

    def close(self) -> None:
        self._broker.close()
        self._server.terminate()
        self._server.wait()
        self._directory.cleanup()


def _actor(function: Any, broker: Any) -> Any:
    return dramatiq.actor(function, actor_name=_ACTOR, broker=broker)


def _await_redis(url: str) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
            client.ping()
            return
        time.sleep(_LOOK_S)
    raise TimeoutError(f"redis-server did not answer within {_START_S:g} s")


def main() -> None:
    options = read_options()

    def work(**payload: Any) -> None:
        began = time.time()
        if seconds := payload[SLEEP]:
            time.sleep(seconds)
        write_times(options.directory, payload[SENT], began)

    broker = RedisBroker(url=options.address)
    _actor(work, broker)
    worker = dramatiq.Worker(broker, worker_threads=options.concurrency)
    worker.start()
    sigwait({SIGTERM})
    worker.stop()
