"""The system under test: the instances with a service manager that starts them again, the
producers, the server and the network between.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from benches.servers import connect
from lab.instances import Instance, InstanceOptions, end

from cmdbus import CommandBus, SendRequest
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.errors import CmdbusError
from cmdbus.exits import Exit
from fault_injection.expected_exits import ExpectedExits
from fault_injection.failpoints import DIRECTORY, NAME, Failpoints
from fault_injection.freezer import Freezer
from fault_injection.handlers import FUSES, domain_of
from fault_injection.history import Restore
from fault_injection.hosts import Host
from fault_injection.journal import Journal
from fault_injection.plan import Plan
from fault_injection.producers import Producers
from fault_injection.proxy import Proxy
from fault_injection.selecting import options_of
from fault_injection.undoing import Undoing

#: A password that the server does not ask for: it must not appear in any file.
CANARY = "canary-5cNb2W"
_TEND_S = 0.1


class Rig:
    def __init__(
        self,
        plan: Plan,
        dsn: str,
        server: EmbeddedPostgres | None,
        directory: Path,
        *,
        admin_dsn: str,
        hosts: Sequence[Host] = (),
    ) -> None:
        self.plan = plan
        self.directory = directory
        #: Without the network that has faults.
        self.dsn = dsn
        #: Of another database of the same server.
        self.admin_dsn = admin_dsn
        self.server = server
        #: One for each instance, or none: then all are on ours.
        self.hosts = hosts
        self.undoing = Undoing()
        self.server_lock = threading.Lock()
        for name in ("journals", "instances", "socket", "relay", FUSES):
            (directory / name).mkdir(mode=0o700)
        self.failpoints = Failpoints(directory)
        self.exits = ExpectedExits(self.failpoints)
        self.journal = Journal(directory / "journals" / "chaos")
        self.proxy = Proxy(dsn, directory / "socket")
        #: From the others' hosts to the server, without faults of its own.
        self._relay = Proxy(dsn, directory / "relay")
        self.instances = [self._instance(number) for number in range(plan.options.instances)]
        self.freezer = Freezer()
        self._bus = CommandBus(dsn)
        self._sending = threading.Lock()
        self._sent = 0
        #: How often the moment of a fault came that had to wait for it.
        self.hits: Counter[str] = Counter()
        #: What happened and must not happen, in sentences.
        self.wrong: list[str] = []
        self.producers = Producers(plan, directory, dsn, self.proxy.dsn, self.wrong)
        self.restores: list[Restore] = []
        #: When the schedules were paused.
        self.paused_at = 0.0

    def _instance(self, number: int) -> Instance:
        name = chr(ord("a") + number)
        options = self.plan.options
        instance_options = InstanceOptions(
            app="fault_injection.handlers:registry",
            dsn=f"{self._way(number)} password={CANARY}",
            procs=options.procs,
            threads=options.threads,
            options=[*options.arguments(), *options_of(number), "--log-format", "json"],
            environment={DIRECTORY: str(self.directory), NAME: name},
            prefix=self.hosts[number].prefix if self.hosts else (),
            prelude="from fault_injection.failpoints import activate; activate()",
        )
        return Instance(name, instance_options, self.directory / "instances")

    def _way(self, number: int) -> str:
        """To the server. The first instance is behind the network that has faults."""
        if self.hosts:
            proxy = self.proxy if number == 0 else self._relay
            return proxy.listen(self.hosts[number].address)
        return self.proxy.dsn if number == 0 else self.dsn

    # The instances.

    def start(self) -> None:
        for instance in self.instances:
            instance.start()

    def tend(self, seconds: float) -> None:
        """Restarts what exits, as a service manager does. Only for the main thread: processes
        end with the thread that has started them."""
        deadline = time.monotonic() + seconds
        while True:
            for instance in self.instances:
                if (code := instance.code) is not None:
                    if not self.exits.is_expected(instance, code):
                        self.wrong.append(f"the supervisor {instance.name} ended with {code}")
                    instance.start()
            self.producers.tend()
            if (left := deadline - time.monotonic()) <= 0:
                return
            time.sleep(min(_TEND_S, left))

    def end_instances(self) -> None:
        """The codes of all of them are to be 0, as nothing is left to do."""
        end(self.instances)
        for instance in self.instances:
            if instance.code != Exit.DONE:
                self.wrong.append(f"the supervisor {instance.name} ended with {instance.code}")

    # Commands of faults.

    def send(self, domain: str, type_: str, priority: str = "normal", **data: float) -> Any:
        """None if it is not known whether it was sent."""
        with self._sending:
            self._sent += 1
            call = f"chaos-{self._sent}"
        journal = self.journal
        journal.write("invoke", call, way="send", count=1)
        payload = {"call": call, "index": 0, **data}
        request = SendRequest(domain, type_, payload, priority=priority, max_attempts=3)
        try:
            [id_] = self._bus.send_many([request])
        except (psycopg.Error, CmdbusError) as error:
            journal.write("unknown", call, why=type(error).__name__)
            return None
        journal.write("ok", call, ids=[id_])
        return id_

    def has_ended(self, instance: Instance, id_: Any) -> bool:
        try:
            record = self._bus.get(domain_of(instance.name), id_)
        except CmdbusError:
            return False
        return record is not None and record.status not in ("PENDING", "IN_PROGRESS")

    # The database.

    def connect(self) -> psycopg.Connection:
        return connect(self.dsn)

    # All of it.

    def heal(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.resume()
        if self.server is not None:
            with self.server_lock:
                self.server.start()

    def processes(self) -> list[psutil.Process]:
        """The supervisors that live, and all of their children."""
        found = []
        for instance in self.instances:
            with suppress(psutil.Error, AssertionError):
                supervisor = psutil.Process(instance.pid)
                found += [supervisor, *supervisor.children(recursive=True)]
        return found

    def close(self) -> None:
        self.freezer.close()
        self.undoing.close()
        for process in self.processes():
            with suppress(psutil.Error):
                process.resume()
        self.producers.end(at_once=True)
        end(self.instances, seconds=3.0)
        self.proxy.close()
        self._relay.close()
        self.journal.close()
        self._bus.close()


def chosen(things: Sequence[int], rand: float) -> int | None:
    return sorted(things)[int(rand * len(things))] if things else None


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def within(seconds: float, what: Callable[[], bool], pause: float = 0.05) -> float | None:
    """After how long it was true; None if it was not in time."""
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        with suppress(psycopg.Error, psutil.Error, CmdbusError):
            if what():
                return now - began
        time.sleep(pause)
    return None
