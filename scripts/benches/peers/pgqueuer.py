"""PGQueuer: a queue in PostgreSQL. Its workers are asyncio programs on asyncpg, the quickest of
its drivers, with async entrypoints and, for quick handlers, batches of 100; finished jobs move from
its queue to its log."""

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pgqueuer
from psycopg.conninfo import conninfo_to_dict

from benches.peers.peer import Payload, Peer, read_options
from benches.peers.times import SENT, SLEEP, write_times

_ENTRYPOINT = "work"
_QUICK_BATCH = 100


class PgQueuer(Peer):
    name = "pgqueuer"
    share = 0.2

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(_connect(address))
        self._queries = pgqueuer.Queries(pgqueuer.AsyncpgDriver(self._connection))
        self._runner.run(self._queries.install())

    def send(self, payloads: Sequence[Payload]) -> None:
        texts = [json.dumps(payload).encode() for payload in payloads]
        count = len(texts)
        self._runner.run(self._queries.enqueue([_ENTRYPOINT] * count, texts, [0] * count))

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


async def _connect(dsn: str) -> Any:
    parts = conninfo_to_dict(dsn)
    return await asyncpg.connect(
        host=parts["host"], user=parts["user"], database=parts["dbname"], port=parts.get("port")
    )


def main() -> None:
    options = read_options()

    async def work(job: Any) -> None:
        began = time.time()
        payload = json.loads(job.payload)
        if seconds := payload[SLEEP]:
            await asyncio.sleep(seconds)
        write_times(options.directory, payload[SENT], began)

    async def run() -> None:
        queuer = pgqueuer.PgQueuer.from_asyncpg_connection(await _connect(options.address))
        queuer.entrypoint(_ENTRYPOINT)(work)
        # Its limit must be at least two batches.
        batch, limit = options.concurrency // 2, options.concurrency
        if options.quick:
            batch, limit = _QUICK_BATCH, 2 * _QUICK_BATCH
        await queuer.run(
            dequeue_timeout=timedelta(seconds=30), batch_size=batch, max_concurrent_tasks=limit
        )

    asyncio.run(run())
