"""The system under test: the instances with a service manager that starts them again, the
producers, the server and the network between.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from benches.servers import connect
from lab.instances import SCRIPTS, Instance, InstanceOptions, end

from cmdbus import CommandBus, SendRequest
from cmdbus.embedded import EmbeddedPostgres
from cmdbus.errors import CmdbusError
from cmdbus.exits import Exit
from fault_injection.failpoints import DIRECTORY, KILL, NAME, Failpoints, pid_of
from fault_injection.handlers import FUSES, domain_of
from fault_injection.history import Restore
from fault_injection.hosts import Host
from fault_injection.journal import Journal
from fault_injection.plan import Plan, Producing
from fault_injection.proxy import Proxy
from fault_injection.undoing import RunEndsError, Undoing

#: A password that the server does not ask for: it must not appear in any file.
CANARY = "canary-5cNb2W"
_TEND_S = 0.1
#: Seconds within which a supervisor that is refused at its start has exited.
_REFUSED_S = 6.0
#: Kills in a minute after which a supervisor may give up.
_KILLS_FOR_A_LOOP = 4
_PRODUCE = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0);"
    " from fault_injection.producing import main; main()"
)
_LEAVES_S = 10.0


class TestRig:
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
        self.journal = Journal(directory / "journals" / "chaos")
        self.proxy = Proxy(dsn, directory / "socket")
        #: From the others' hosts to the server, without faults of its own.
        self._relay = Proxy(dsn, directory / "relay")
        self.instances = [self._instance(number) for number in range(plan.options.instances)]
        self._lives: dict[int, int] = {}
        self._producers: dict[int, subprocess.Popen[bytes]] = {}
        self._freezing = threading.Lock()
        self._frozen: Counter[psutil.Process] = Counter()
        self._ended = False
        self._refusals = 0
        self._refused_at = float("-inf")
        #: Supervisors that were ended on purpose, by pid.
        self._expected: set[int] = set()
        #: When a process of an instance was killed by us.
        self._kills: dict[str, list[float]] = {}
        self._bus = CommandBus(dsn)
        self._sending = threading.Lock()
        self._sent = 0
        #: How often the moment of a fault came that had to wait for it.
        self.hits: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.restores: list[Restore] = []

    def _instance(self, number: int) -> Instance:
        name = chr(ord("a") + number)
        options = self.plan.options
        instance_options = InstanceOptions(
            app="fault_injection.handlers:registry",
            dsn=f"{self._way(number)} password={CANARY}",
            procs=options.procs,
            threads=options.threads,
            options=[*options.arguments(), "--log-format", "json"],
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

    def expect_end(self, instance: Instance) -> None:
        self._expected.add(instance.pid)

    def killed(self, instance: Instance) -> None:
        self._kills.setdefault(instance.name, []).append(time.monotonic())

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Meanwhile a supervisor may exit at its start: only an operator can repair the cause."""
        self._refusals += 1
        try:
            yield
        finally:
            self._refused_at = time.monotonic()
            self._refusals -= 1

    def tend(self, seconds: float) -> None:
        """Restarts what exits, as a service manager does. Only for the main thread: processes
        end with the thread that has started them."""
        deadline = time.monotonic() + seconds
        while True:
            for instance in self.instances:
                if (code := instance.code) is not None:
                    self._judge_end(instance, code)
                    instance.start()
            for producing in self.plan.producers:
                if (code := self._producers[producing.number].poll()) is not None:
                    if code != -signal.SIGKILL:  # which is ours
                        self.wrong.append(f"a producer ended with {code}: see producers.log")
                    self.start_producer(producing)
            if (left := deadline - time.monotonic()) <= 0:
                return
            time.sleep(min(_TEND_S, left))

    def _judge_end(self, instance: Instance, code: int) -> None:
        if instance.pid in self._expected:
            self._expected.discard(instance.pid)
            return
        caught = map(pid_of, self.failpoints.victims(instance.name, what=KILL))
        if code == -signal.SIGKILL and instance.pid in caught:
            return
        refused = self._refusals or time.monotonic() < self._refused_at + _REFUSED_S
        if code == Exit.CANNOT_START and refused:
            return
        # It cannot know that a fault kills its workers, and not the application.
        recent = [at for at in self._kills.get(instance.name, ()) if at > time.monotonic() - 60]
        if code != Exit.CRASH_LOOP or len(recent) < _KILLS_FOR_A_LOOP:
            self.wrong.append(f"the supervisor {instance.name} ended with {code}")

    def end_instances(self) -> None:
        """The codes of all of them are to be 0, as nothing is left to do."""
        end(self.instances)
        for instance in self.instances:
            if instance.code != Exit.DONE:
                self.wrong.append(f"the supervisor {instance.name} ended with {instance.code}")

    # The producers.

    def produce(self) -> None:
        for producing in self.plan.producers:
            self.start_producer(producing)

    def start_producer(self, producing: Producing) -> None:
        number = producing.number
        self._lives[number] = life = self._lives.get(number, 0) + 1
        name = f"p{number}.{life}"
        options = {
            "name": name,
            "seed": producing.seed + life,
            "calls_per_s": producing.calls_per_s,
            # Longer than a lease, which must be renewed.
            "longest": self.plan.options.lease + 0.5,
            "domains": self.plan.domains,
            "journal": str(self.directory / "journals" / name),
        }
        with (self.directory / "producers.log").open("ab") as log:
            self._producers[number] = subprocess.Popen(
                [sys.executable, "-c", _PRODUCE, json.dumps(options)],
                env={
                    **os.environ,
                    "CMDBUS_DSN": self.proxy.dsn if producing.by_proxy else self.dsn,
                    "PYTHONPATH": str(SCRIPTS),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_producer(self, producing: Producing) -> None:
        """It is started again, as another one."""
        self._producers[producing.number].kill()

    def end_producers(self, *, at_once: bool = False) -> None:
        for process in self._producers.values():
            process.kill() if at_once else process.terminate()
        deadline = time.monotonic() + _LEAVES_S
        for process in self._producers.values():
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(max(0.0, deadline - time.monotonic()))
                if code and not at_once:
                    self.wrong.append(f"a producer ended with {code}: see producers.log")
                continue
            # One that waits for a lost reply: what it sent last is unknown.
            process.kill()
            process.wait()

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

    @contextmanager
    def frozen(self, pid: int) -> Iterator[None]:
        """Until the last fault that froze it releases it. A process that has got its pid since
        then is left alone."""
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            yield
            return
        with self._freezing:
            if self._ended:
                raise RunEndsError("the run ends")
            self._frozen[process] += 1
            with suppress(psutil.Error):
                process.suspend()
        try:
            yield
        finally:
            with self._freezing:
                self._frozen[process] -= 1
                if not self._frozen[process]:
                    with suppress(psutil.Error):
                        process.resume()

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
        with self._freezing:
            self._ended = True
        self.undoing.close()
        for process in (*self._frozen, *self.processes()):
            with suppress(psutil.Error):
                process.resume()
        self.end_producers(at_once=True)
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
