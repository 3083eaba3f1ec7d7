"""procrastinate: a queue in PostgreSQL. Its workers are asyncio programs with async tasks, which
are quicker than its tasks in threads; finished jobs stay in its table, as its default is."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import procrastinate

from benches.peers.peer import Payload, Peer, read_options
from benches.peers.times import SENT, SLEEP, write_times

_TASK = "work"


class Procrastinate(Peer):
    name = "procrastinate"
    share = 0.05

    def __init__(self, address: str) -> None:
        super().__init__(address)
        connector = procrastinate.SyncPsycopgConnector(conninfo=address)
        self._app = procrastinate.App(connector=connector)
        self._app.open()
        self._app.schema_manager.apply_schema()

    def send(self, payloads: Sequence[Payload]) -> None:
        self._app.configure_task(_TASK).batch_defer(*payloads)

    def close(self) -> None:
        self._app.close()


def main() -> None:
    options = read_options()

    async def work(**payload: Any) -> None:
        began = time.time()
        if seconds := payload[SLEEP]:
            await asyncio.sleep(seconds)
        write_times(options.directory, payload[SENT], began)

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=options.address))
    app.task(work, name=_TASK)

    async def run() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=options.concurrency)

    asyncio.run(run())
