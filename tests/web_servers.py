"""The web servers of the example applications in `apps`, and the one that their handlers call."""

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import httpx
from eventually import eventually
from psycopg.conninfo import conninfo_to_dict

APPS = Path(__file__).parent / "apps"
#: Seconds, for one that starts together with a fleet on a busy machine.
_START_S = 30


def url_of(dsn: str) -> str:
    """The form of a DSN that SQLAlchemy understands, too."""
    return f"postgresql:///?{urlencode(conninfo_to_dict(dsn))}"


@contextmanager
def web_server(log: Path, *command: str) -> Iterator[httpx.Client]:
    """A client of the server that `python -m command` runs until the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", *command], cwd=APPS, stdout=output, stderr=output
        )
    try:
        address = eventually(lambda: _address(process, log), _START_S)
        with httpx.Client(base_url=address, timeout=_START_S, trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(10)
        print(log.read_text()[-5_000:])  # shown if the test fails


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    text = log.read_text()
    assert process.poll() is None, text
    found = re.search(r"(?:unning on|server at) (http://[\w.:]+)", text)
    return found[1] if found else ""


class Provider(ThreadingHTTPServer):
    """A payment provider: it charges once for an idempotency key, and declines 1000 and more."""

    daemon_threads = False  # those that are closed are waited for

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Charge)
        self.url = f"http://127.0.0.1:{self.server_port}"
        #: Calls by idempotency key.
        self.calls: Counter[str] = Counter()
        #: Calls wait for it.
        self.answers = threading.Event()
        self.answers.set()


class _Charge(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        self.server.calls[key] += 1
        self.server.answers.wait(20)
        with suppress(ConnectionError):  # the caller was killed
            self.send_response(402 if float(body["amount"]) >= 1000 else 201)
            self.end_headers()
            self.wfile.write(json.dumps({"receipt": f"receipt of {key}"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def payment_provider() -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield provider
        finally:
            provider.answers.set()
            provider.shutdown()
            thread.join()
