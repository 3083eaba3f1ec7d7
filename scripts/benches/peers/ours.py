"""cmdbus, by the measure of the others."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benches.fleet import DOMAIN, TYPE, fleet
from benches.peers.peer import Payload, Peer
from benches.peers.times import SENT, SLEEP, write_times
from cmdbus.command import Command
from cmdbus.context import Context
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.requests import SendRequest


class Cmdbus(Peer):
    name = "cmdbus"
    share = 1.0

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._bus = CommandBus(address)

    def send(self, payloads: Sequence[Payload]) -> None:
        if len(payloads) == 1:
            self._bus.send(DOMAIN, TYPE, payloads[0])
        else:
            self._bus.send_many([SendRequest(DOMAIN, TYPE, payload) for payload in payloads])

    @contextmanager
    def workers(
        self, directory: str, processes: int, threads: int, *, quick: bool
    ) -> Iterator[None]:
        handlers = {TYPE: partial(_work, directory)}
        with fleet(
            self.address, handlers, processes=processes, threads=threads, started=False
        ) as own:
            own.start()
            yield

    def close(self) -> None:
        self._bus.close()


def _work(directory: str, command: Command, context: Context) -> None:
    began = time.time()
    if seconds := command.data[SLEEP]:
        time.sleep(seconds)
    write_times(directory, command.data[SENT], began)
