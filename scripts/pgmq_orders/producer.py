"""A program that takes orders and knows only PGMQ: plain SQL on a connection of psycopg.

Each order and its message are written in one transaction. A message on the queue `receipts` says
what became of an order; its header pgmq_msg_id is the number that pgmq.send has returned.
"""

import json
import os
import sys
from typing import Any

import psycopg

#: Seconds that one read waits for messages, and that one hides them from other readers.
_WAITS, _HIDDEN = 20, 30

_CREATE = """
    CREATE TABLE IF NOT EXISTS purchase (
        number integer PRIMARY KEY, amount integer NOT NULL, message bigint NOT NULL,
        outcome text NOT NULL DEFAULT 'OPEN')"""
_ORDER = """
    INSERT INTO purchase (number, amount, message)
    SELECT %(number)s, %(amount)s, pgmq.send('orders', %(message)s::jsonb, %(headers)s::jsonb)
    RETURNING message"""
_READ = "SELECT msg_id, message, headers FROM pgmq.read_with_poll('receipts', %s, 100, %s, 50)"
_ANSWERED = "UPDATE purchase SET outcome = %s WHERE message = %s RETURNING number"
_DELETE = "SELECT pgmq.delete('receipts', %s::bigint)"


def order(connection: psycopg.Connection, number: int, amount: int) -> None:
    values = {
        "number": number,
        "amount": amount,
        "message": json.dumps({"order": number, "amount": amount}),
        "headers": json.dumps({"tenant": "north"}),
    }
    with connection.transaction():
        [(message,)] = connection.execute(_ORDER, values).fetchall()
    print(f"order {number} of {amount}: message {message}")


def take_answers(connection: psycopg.Connection) -> int:
    """What each says and its removal from the queue are one transaction."""
    answers = connection.execute(_READ, (_HIDDEN, _WAITS)).fetchall()
    for id_, message, headers in answers:
        with connection.transaction():
            take(connection, message, int(headers["pgmq_msg_id"]))
            connection.execute(_DELETE, (id_,))
    return len(answers)


def take(connection: psycopg.Connection, reply: dict[str, Any], message: int) -> None:
    outcome, result = reply["outcome"], reply["result"]
    [(number,)] = connection.execute(_ANSWERED, (outcome, message)).fetchall()
    summary = (
        result["receipt"] if outcome == "SUCCESS" else f"{result['code']}: {result['message']}"
    )
    print(f"order {number}, message {message}: {outcome}, {summary}")


def main(orders: int) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(_CREATE)
        for number in range(1, orders + 1):
            order(connection, number, amount=5 if number < orders else 2_000)
        answered = 0
        while answered < orders:
            found = take_answers(connection)
            if not found:
                sys.exit(f"{orders - answered} orders have no answer after {_WAITS} s")
            answered += found


if __name__ == "__main__":
    main(int(sys.argv[1]))
