"""Bridges of a fleet whose steward is killed while messages come and answers go."""

import threading

import psycopg
import pytest
from bridges import messages, send_messages
from eventually import eventually
from fleet import Fleet, kill
from handlers import beside
from pgmq_queues import create_queues, install_pgmq

from cmdbus import CommandBus

_MESSAGES = 600


@pytest.mark.long
@pytest.mark.fleet(procs=1)
def test_each_message_gets_one_answer_while_stewards_are_killed(
    fleet: Fleet, bus: CommandBus, connection: psycopg.Connection
) -> None:
    install_pgmq(connection)
    create_queues(connection, "orders", "answers")
    bus.bridges.add("orders", "shop", "Debit", reply_to="back", batch_size=5)
    bus.bridges.add("answers", "back", direction="out", batch_size=3)
    ended = threading.Event()
    sent: list[int] = []

    def produce() -> None:
        """As a program that knows only PGMQ; some of its transactions are rolled back."""
        with psycopg.connect(fleet.dsn) as producer:
            for n in range(_MESSAGES):
                ids = send_messages(producer, "orders", None)
                if n % 7 == 0:
                    producer.rollback()
                else:
                    producer.commit()
                    sent.extend(ids)
        ended.set()

    with beside(produce):
        for _ in range(3):
            steward = fleet.steward()
            assert steward is not None
            answered = len(messages(fleet.dsn, "answers"))
            eventually(lambda a=answered: len(messages(fleet.dsn, "answers")) > a, 20)  # type: ignore[misc]
            kill(steward)
            fleet.succeeded(steward)
        assert ended.wait(30)
    eventually(lambda: len(messages(fleet.dsn, "answers")) >= len(sent), 30)
    found = [int(headers["pgmq_msg_id"]) for _, headers in messages(fleet.dsn, "answers")]
    assert sorted(found) == sorted(sent)
    assert messages(fleet.dsn, "orders") == []
    assert fleet.query("SELECT count(*) FROM effect") == [(len(sent),)]
    assert [(record.moved, record.refused) for record in bus.bridges.list()] == [
        (len(sent), 0),
        (len(sent), 0),
    ]
