"""The example applications: what was asked of their web servers is done exactly once by a fleet
whose workers are killed meanwhile."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest
from eventually import eventually
from example_fleets import TIMEOUTS, await_ends, while_workers_are_killed
from fleet import Fleet, kill
from web_servers import APPS, Provider, payment_provider, url_of, web_server

of_flask = pytest.mark.fleet(started=False, app="flask_app.handlers:registry", **TIMEOUTS)
of_fastapi = pytest.mark.fleet(started=False, app="fastapi_app.handlers:registry", **TIMEOUTS)
FLASK = ["flask", "--app", "flask_app.web", "run", "--port", "0"]
UVICORN = ["uvicorn", "fastapi_app.web:app", "--port", "0"]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with payment_provider() as provider:
        yield provider


@pytest.fixture
def client(
    request: pytest.FixtureRequest,
    provider: Provider,
    fleet: Fleet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[httpx.Client]:
    """Of the application's server; its fleet is ready."""
    monkeypatch.setenv("DATABASE_URL", url_of(fleet.dsn))
    monkeypatch.setenv("PROVIDER_URL", provider.url)
    fleet.start(shell=f"cd '{APPS}' && exec " + '"$@"')
    with web_server(tmp_path / "web.log", *request.param) as client:
        fleet.wait_until_ready()
        yield client


# The shop: Flask, Flask-SQLAlchemy, context.session, a dataclass.


def order(shop: httpx.Client, number: object, amount: int = 5) -> int:
    return shop.post("/orders", json={"number": f"{number}", "amount": f"{amount}"}).status_code


def assert_paid_once(fleet: Fleet, provider: Provider, commands: dict[str, str]) -> None:
    """Each order has a command, each charge the key of its own, and each completed command one
    payment, of the receipt that it got."""
    charges = fleet.query("SELECT charge_id::text FROM orders")
    assert sorted(id for (id,) in charges) == sorted(commands)
    assert provider.calls.keys() == commands.keys()
    receipts = fleet.query(
        "SELECT p.receipt, o.charge_id::text FROM payments p JOIN orders o"
        " ON o.number = p.order_number"
    )
    completed = [id for id, status in commands.items() if status == "COMPLETED"]
    assert sorted(receipts) == sorted((f"receipt of {id}", id) for id in completed)


@of_flask
@pytest.mark.parametrize("client", [FLASK], ids=["flask"], indirect=True)
def test_each_order_is_paid_once_though_workers_are_killed(
    client: httpx.Client, provider: Provider, fleet: Fleet
) -> None:
    provider.answers.clear()
    assert [order(client, number) for number in range(8)] == [201] * 8
    assert order(client, 1) == 409
    eventually(lambda: len(provider.calls) == 8)
    kill(fleet.pids().values())
    assert [order(client, "more"), order(client, "dear", 1000)] == [201, 201]
    provider.answers.set()
    commands = await_ends(fleet)
    assert Counter(commands.values()) == {"COMPLETED": 9, "FAILED": 1}
    assert provider.calls.total() == 8 + 10
    assert_paid_once(fleet, provider, commands)
    dear = client.get("/orders/dear").json()
    assert dear == {"number": "dear", "charge": "FAILED", "receipts": []}


@pytest.mark.long
@pytest.mark.timeout(300)
@of_flask
@pytest.mark.parametrize("client", [FLASK], ids=["flask"], indirect=True)
def test_many_orders_are_paid_once_though_workers_are_killed_five_times(
    client: httpx.Client, provider: Provider, fleet: Fleet
) -> None:
    while_workers_are_killed(fleet, lambda number: order(client, number), 400)
    commands = await_ends(fleet)
    assert Counter(commands.values()) == {"COMPLETED": 400}
    assert_paid_once(fleet, provider, commands)


# The bank: FastAPI, AsyncSession, AsyncCommandBus, context.connection, a pydantic model.


def transfer(bank: httpx.Client, source: int, target: int, amount: int) -> httpx.Response:
    asked = {"source": source, "target": target, "amount": f"{amount}"}
    return bank.post("/transfers", json=asked)


def end_of(bank: httpx.Client, transfer_id: str) -> str:
    """Its status; empty if it has not ended within the ten seconds that the bank waits for it."""
    status = str(bank.get(f"/transfers/{transfer_id}").json())
    return "" if status == "PENDING" else status


def assert_made_once(fleet: Fleet, commands: dict[str, str]) -> None:
    """Each transfer that was accepted has a command, and each completed command two entries,
    which are what the accounts have."""
    assert sorted(commands) == sorted(id for (id,) in fleet.query("SELECT id::text FROM transfers"))
    entries = fleet.query("SELECT transfer_id::text, account_id, amount::int FROM entries")
    completed = {id for id, status in commands.items() if status == "COMPLETED"}
    expected = fleet.query(
        "SELECT id::text, source, -amount::int, target, amount::int FROM transfers"
    )
    assert Counter(entries) == Counter(
        (id, *change)
        for id, source, minus, target, plus in expected
        if id in completed
        for change in ((source, minus), (target, plus))
    )
    assert (
        fleet.query(
            "SELECT id, balance FROM accounts WHERE balance <>"
            " 100 + (SELECT coalesce(sum(amount), 0) FROM entries WHERE account_id = accounts.id)"
        )
        == []
    )


@of_fastapi
@pytest.mark.parametrize("client", [UVICORN], ids=["fastapi"], indirect=True)
def test_each_transfer_is_made_once_though_workers_are_killed(
    client: httpx.Client, fleet: Fleet
) -> None:
    a, b, c = (client.post("/accounts", params={"balance": 100}).json() for _ in range(3))
    with psycopg.connect(fleet.dsn) as locking:
        locking.execute("SELECT FROM accounts FOR NO KEY UPDATE")
        asked = [transfer(client, a, b, 2) for _ in range(4)]
        asked += [transfer(client, b, c, 3) for _ in range(4)]
        eventually(lambda: len(fleet.executing("MakeTransfer")) == 8)
        kill(fleet.pids().values())
        assert transfer(client, a, 1_000_000, 1).status_code == 404
        dear = transfer(client, a, b, 1000)
    shown = [eventually(partial(end_of, client, each.json()), 50) for each in [*asked, dear]]
    assert shown == ["COMPLETED"] * 8 + ["FAILED"]
    assert client.get(f"/transfers/{uuid4()}").status_code == 404
    commands = await_ends(fleet)
    assert Counter(commands.values()) == {"COMPLETED": 8, "FAILED": 1}
    assert_made_once(fleet, commands)


@pytest.mark.long
@pytest.mark.timeout(300)
@of_fastapi
@pytest.mark.parametrize("client", [UVICORN], ids=["fastapi"], indirect=True)
def test_many_transfers_are_made_once_though_workers_are_killed_five_times(
    client: httpx.Client, fleet: Fleet
) -> None:
    accounts = [client.post("/accounts", params={"balance": 100}).json() for _ in range(10)]

    def ask(number: int) -> object:
        source, target = accounts[number % 10], accounts[number * 7 % 10]
        return source == target or transfer(client, source, target, number % 30 + 1)

    while_workers_are_killed(fleet, ask, 400)
    commands = await_ends(fleet)
    assert len({*commands.values()}) == 2  # some accounts had too little
    assert_made_once(fleet, commands)
