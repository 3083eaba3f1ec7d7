"""Concurrent senders, and the rows that a send leaves behind."""

import threading
from collections.abc import Callable

from handlers import connect


def counts(dsn: str) -> dict[str, int]:
    """Rows of every table that a send can touch."""
    tables = ("ready", "scheduled", "identity", "event", "domain")
    with connect(dsn) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM cmdbus.{table}").fetchone()[0]  # type: ignore[index]
            for table in tables
        }


def race(workers: list[Callable[[], object]]) -> list[object]:
    barrier = threading.Barrier(len(workers))
    results: list[object] = [None] * len(workers)

    def run(index: int) -> None:
        barrier.wait(10)
        try:
            results[index] = workers[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results
