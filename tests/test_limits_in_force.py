"""The limits in force: the latest declarations of all apps, and what operators set."""

import json
from threading import Thread
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from queries import await_lock_waits, rows, scalar

#: Of a limit that has nothing else.
NOTHING = {
    "concurrency": None,
    "starts_per_second": None,
    "burst": None,
    "ordered": False,
    "on_trouble": "block",
    "fair": False,
    "per_node": False,
}


def declare(
    connection: psycopg.Connection, app: str, *limits: dict[str, Any]
) -> list[tuple[str, Any, Any]]:
    query = "SELECT * FROM cmdbus.declare_limits(%s, %s)"
    return connection.execute(query, (app, json.dumps(limits))).fetchall()


def set_limit(connection: psycopg.Connection, name: str, **values: Any) -> str | None:
    places = "".join(f", p_{column} => %({column})s" for column in values)
    query = f"SELECT cmdbus.set_limit(%(name)s, %(given)s, 'ann', 'test'{places})"
    given = {"name": name, "given": list(values), **values}
    [(refusal,)] = connection.execute(query.encode(), given).fetchall()
    return str(refusal) if refusal else None


def in_force(connection: psycopg.Connection) -> dict[str, dict[str, Any]]:
    """By name, without what is as in NOTHING."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute("SELECT * FROM cmdbus.limit_in_force").fetchall()
    return {
        row.pop("name"): {name: value for name, value in row.items() if value != NOTHING[name]}
        for row in found
    }


def types(connection: psycopg.Connection) -> set[tuple[str, str, str | None, tuple[str, ...]]]:
    query = "SELECT domain, type, own, shared FROM cmdbus.limited_type"
    return {(*row[:3], tuple(row[3])) for row in connection.execute(query).fetchall()}


def number(connection: psycopg.Connection) -> int:
    return int(scalar(connection, "SELECT cmdbus.committed_limits()"))


def test_what_is_set_wins_over_what_is_declared_until_it_is_cleared(
    connection: psycopg.Connection,
) -> None:
    declare(connection, "shop", {"name": "payments Charge", "concurrency": 5, "fair": True})
    declared = {"payments Charge": {"concurrency": 5, "fair": True}}
    assert in_force(connection) == declared
    set_limit(connection, "payments Charge", starts_per_second=2.5)
    set_limit(connection, "payments Charge", concurrency=None)
    assert in_force(connection) == {
        "payments Charge": {"starts_per_second": 2.5, "burst": 2, "fair": True}
    }
    declare(connection, "shop", {"name": "payments Charge", "concurrency": 7})
    assert in_force(connection) == {"payments Charge": {"starts_per_second": 2.5, "burst": 2}}
    clear = "SELECT cmdbus.clear_limit('payments Charge', 'ann', 'over')"
    assert scalar(connection, clear) is None
    assert in_force(connection) == {"payments Charge": {"concurrency": 7}}
    assert scalar(connection, clear) == "unset"


def test_the_latest_declaration_of_a_name_holds_and_each_app_removes_its_own(
    connection: psycopg.Connection,
) -> None:
    limit = {"name": "stripe", "covers": ["payments Charge"]}
    declare(connection, "old", {**limit, "concurrency": 1}, {"name": "a B", "fair": True})
    declare(connection, "new", {**limit, "concurrency": 2, "covers": ["payments Refund"]})
    assert in_force(connection) == {"stripe": {"concurrency": 2}, "a B": {"fair": True}}
    both = {("payments", "Charge", None, ("stripe",)), ("payments", "Refund", None, ("stripe",))}
    assert types(connection) == {*both, ("a", "B", "a B", ())}
    declare(connection, "old", {**limit, "concurrency": 3})
    assert in_force(connection) == {"stripe": {"concurrency": 3}}
    assert types(connection) == both
    declare(connection, "old")
    assert in_force(connection) == {"stripe": {"concurrency": 2}}
    declare(connection, "new")
    assert (in_force(connection), types(connection)) == ({}, set())


def test_a_type_has_its_own_limit_those_it_shares_and_those_of_its_domain(
    connection: psycopg.Connection,
) -> None:
    declare(
        connection,
        "shop",
        {"name": "mail Send", "ordered": True, "on_trouble": "skip"},
        {"name": "smtp", "starts_per_second": 5, "covers": ["mail Send", "mail Bounce"]},
        {"name": "all.mail", "concurrency": 9, "per_node": True, "covers": ["mail"]},
        {"name": "unused", "concurrency": 1},
    )
    assert types(connection) == {
        ("mail", "Send", "mail Send", ("all.mail", "smtp")),
        ("mail", "Bounce", None, ("all.mail", "smtp")),
        ("mail", "", None, ("all.mail",)),
    }
    ordered = {"concurrency": 1, "ordered": True, "on_trouble": "skip"}
    assert in_force(connection)["mail Send"] == ordered
    assert in_force(connection)["all.mail"] == {"concurrency": 9, "per_node": True}
    assert rows(connection.info.dsn, "SELECT name FROM cmdbus.domain") == [("mail",)]


def test_replies_and_commands_of_processes_have_no_limit_of_their_domain(
    connection: psycopg.Connection,
) -> None:
    types_of_processes = ("process:start", "process:Refund:step")
    for type_ in ("Reply", *types_of_processes):
        set_limit(connection, f"payments {type_}", concurrency=9)
    declare(connection, "shop", {"name": "stripe", "concurrency": 5, "covers": ["payments"]})
    for type_ in ("Reply", *types_of_processes, "Charge"):
        query = "SELECT own, shared FROM cmdbus.limits_of('payments', %s)"
        found = connection.execute(query, (type_,)).fetchall()
        own = f"payments {type_}"
        assert found == [(None, ["stripe"]) if type_ == "Charge" else (own, [])]


def test_only_a_change_of_what_is_in_force_raises_the_number(
    connection: psycopg.Connection,
) -> None:
    assert number(connection) == 0
    declare(connection, "shop")
    limit = {"name": "payments Charge", "concurrency": 5}
    assert number(connection) == 0
    declare(connection, "shop", limit)
    first = number(connection)
    declare(connection, "shop", limit)
    declare(connection, "other", limit)
    set_limit(connection, "payments Charge", concurrency=5)
    assert number(connection) == first > 0
    set_limit(connection, "payments Charge", concurrency=6)
    assert number(connection) > first


def test_a_start_repairs_a_number_that_was_not_replicated(
    connection: psycopg.Connection,
) -> None:
    set_limit(connection, "payments Charge", concurrency=5)
    connection.execute("SELECT setval('cmdbus.limits', 0)")
    declare(connection, "shop")
    assert number(connection) > 0


def test_the_number_is_unknown_while_a_change_is_not_committed(
    connection: psycopg.Connection, dsn: str
) -> None:
    with connection.transaction():
        declare(connection, "shop", {"name": "payments Charge", "concurrency": 5})
        assert rows(dsn, "SELECT cmdbus.committed_limits()") == [(None,)]
        # What is in force can be read meanwhile, as it was.
        assert rows(dsn, "SELECT FROM cmdbus.limit_in_force") == []
    assert rows(dsn, "SELECT cmdbus.committed_limits()") == [(number(connection),)]


def test_changes_at_the_same_time_wait_for_each_other(
    connection: psycopg.Connection, dsn: str
) -> None:
    charge = {"name": "payments Charge", "concurrency": 5}
    with connection.transaction():
        declare(connection, "shop", charge)
        query = "SELECT cmdbus.set_limit('payments Charge', '{fair}', 'ann', NULL, p_fair => true)"
        other = Thread(target=rows, args=(dsn, query))
        other.start()
        await_lock_waits(dsn)
    other.join()
    assert in_force(connection) == {"payments Charge": {"concurrency": 5, "fair": True}}


@pytest.mark.parametrize(
    ("declared", "values", "refusal"),
    [
        ({"name": "stripe", "concurrency": 5}, {"concurrency": 6}, "unknown"),
        ({"name": "payments Charge", "ordered": True}, {"concurrency": 2}, "concurrency"),
        ({"name": "payments Charge", "ordered": True}, {"concurrency": None}, "concurrency"),
        ({"name": "payments Charge", "concurrency": 5}, {"burst": 2}, "burst"),
        (
            {"name": "payments Charge", "starts_per_second": 5},
            {"burst": 2, "starts_per_second": None},
            "burst",
        ),
        ({"name": "payments Charge", "fair": True}, {"on_trouble": "skip"}, "on_trouble"),
    ],
)
def test_what_contradicts_the_rest_is_not_set(
    connection: psycopg.Connection, declared: dict[str, Any], values: dict[str, Any], refusal: str
) -> None:
    declare(connection, "shop", declared)
    before = in_force(connection)
    name = "strpe" if refusal == "unknown" else declared["name"]
    assert set_limit(connection, name, **values) == refusal
    assert in_force(connection) == before
    assert scalar(connection, "SELECT count(*) FROM cmdbus.limit_set") == 0
