"""Limits that are declared, set and cleared at the same time."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import IsolationLevel
from test_limits_in_force import declare, set_limit

#: Rows that are not what follows from the declarations and settings.
WRONG = """
(SELECT f.name FROM cmdbus.limit_in_force f
 FULL JOIN cmdbus.limits_in_effect() e ON e = f WHERE e IS NULL OR f IS NULL)
UNION ALL
(SELECT t.type FROM cmdbus.limited_type t
 FULL JOIN cmdbus.types_in_effect() e ON e = t WHERE e IS NULL OR t IS NULL)
"""
_ROUNDS = 40


def change(connection: psycopg.Connection, chance: random.Random) -> None:
    own = {"name": "mail Send", "concurrency": chance.randint(1, 3)}
    shared = {"name": "smtp", "concurrency": 1, "covers": chance.sample(["mail", "mail Send"], 1)}
    changes: list[Callable[[], object]] = [
        lambda: declare(connection, chance.choice("ab"), own),
        lambda: declare(connection, chance.choice("ab"), shared),
        lambda: declare(connection, chance.choice("ab"), own, shared),
        lambda: declare(connection, chance.choice("ab")),
        lambda: set_limit(connection, "mail Bounce", fair=chance.random() < 0.5),
        lambda: set_limit(connection, "mail Send", concurrency=chance.randint(1, 3)),
        lambda: connection.execute("SELECT cmdbus.clear_limit('mail Send', NULL, NULL)"),
    ]
    chance.choice(changes)()


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(IsolationLevel.READ_UNCOMMITTED, marks=pytest.mark.long),  # is the next one
        IsolationLevel.READ_COMMITTED,
        pytest.param(IsolationLevel.REPEATABLE_READ, marks=pytest.mark.long),
        IsolationLevel.SERIALIZABLE,
    ],
)
def test_what_is_in_force_follows_from_all_changes_at_each_isolation_level(
    dsn: str, level: IsolationLevel
) -> None:
    """A change that was made with a snapshot from before another one fails, and is made again."""

    def hammer(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(dsn) as connection, psycopg.connect(dsn, autocommit=True) as watcher:
            connection.isolation_level = level
            for _ in range(_ROUNDS):
                try:
                    connection.execute("SELECT 1")  # takes a snapshot
                    change(connection, chance)
                    connection.commit()
                except psycopg.errors.SerializationFailure:
                    connection.rollback()
                assert watcher.execute(WRONG.encode()).fetchall() == []

    with ThreadPoolExecutor() as threads:
        list(threads.map(hammer, range(4)))
