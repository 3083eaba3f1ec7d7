"""What an operator types about limits."""

import json
from collections.abc import Callable

import psycopg
import pytest
from cli import done, here
from click.testing import Result
from test_limits_in_force import declare

from cmdbus import CommandBus

Run = Callable[..., Result]


@pytest.fixture
def run(dsn: str) -> Run:
    return lambda *arguments: here(*arguments, CMDBUS_DSN=dsn)


def test_limits_are_listed_set_and_cleared(
    bus: CommandBus, run: Run, connection: psycopg.Connection
) -> None:
    assert done(run("limit", "list")) == "no limit is declared or set\n"
    declare(
        connection,
        "shop:registry",
        {"name": "payments Charge", "concurrency": 5},
        {"name": "stripe", "starts_per_second": 2, "covers": ["payments Charge", "refunds"]},
    )
    arguments = ["--rate", "100/min", "--concurrency", "none", "--fair"]
    remark = ["--operator", "ann", "--reason", "slow provider"]
    shown = done(run("limit", "set", "payments", "Charge", *arguments, *remark)).splitlines()
    assert shown[0] == "payments/Charge  100/min with a burst of 1, fair, by key"
    assert shown[1].startswith("  declared  5 at once  by shop:registry, ")
    assert shown[2].startswith("  set       concurrency none, rate 100/min, fair yes  by ann, ")
    assert shown[2].endswith(" ago: slow provider")
    listed = done(run("limit", "list")).splitlines()
    assert [listed[0], listed[3]] == [
        shown[0],
        "stripe  2/s with a burst of 2, for payments/Charge, refunds",
    ]
    assert "is kept" not in done(run("limit", "set", "stripe", "--concurrency", "3"))
    assert "did you mean 'payments/Charge'?" in done(
        run("limit", "set", "payments", "Chrge", "--fair")
    )
    assert done(run("limit", "clear", "stripe")).splitlines()[0] == listed[3]
    cleared = done(run("limit", "clear", "payments", "Charge", "--reason", "it is back"))
    assert cleared.splitlines()[0] == "payments/Charge  5 at once, by key"
    event = bus.domain_audit("payments")[-1]
    assert (event.kind, event.message) == ("LIMIT_CLEARED", "it is back")
    done(run("limit", "set", "mail", "Send", "--ordered", "--on-trouble", "skip"))
    unordered = done(run("limit", "set", "mail", "Send", "--unordered", "--fair"))
    assert unordered.startswith("mail/Send  fair, by key\n")
    assert "ordered no, on trouble skip, fair yes" in unordered
    assert unordered.endswith("and none of its commands is kept: is that its name?\n")
    assert done(run("limit", "clear", "mail", "Send")) == "mail/Send: no limit\n"


def test_limits_are_shown_as_json_as_they_are_declared(
    run: Run, connection: psycopg.Connection
) -> None:
    declare(connection, "shop", {"name": "payments Charge", "starts_per_second": 100 / 60})
    terms = {
        **{"concurrency": None, "rate": "100/min", "burst": None, "ordered": False},
        **{"on_trouble": "block", "fair": False, "per": "fleet"},
    }
    record = json.loads(
        done(
            run("limit", "set", "payments", "Charge", "--burst", "7", "--operator", "ann", "--json")
        )
    )
    assert (record["name"], record["covers"]) == ("payments/Charge", ["payments/Charge"])
    assert record["in_force"] == {**terms, "burst": 7}
    [declared] = record["declared"]
    assert (declared["app"], declared["limit"]) == ("shop", terms)
    assert (record["set"]["values"], record["set"]["operator"]) == ({"burst": 7}, "ann")
    assert json.loads(done(run("limit", "list", "--json"))) == {"limits": [record]}
    declare(connection, "shop")
    assert json.loads(done(run("limit", "clear", "payments", "Charge", "--json"))) is None


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            "set payments Charge",
            2,
            "nothing is given to set: --concurrency, --rate, --burst, --ord",
        ),
        ("set payments Charge --concurrency 0", 2, "whole number from 1 to 999999999, or none"),
        ("set payments Charge --rate 0/s", 2, "rate of payments/Charge must be more than 0"),
        ("set payments Charge --rate often", 2, "a number and s, min, h or day, like '100/min'"),
        (
            "set payments Charge --burst 2",
            1,
            "payments/Charge has no rate, and a burst is about one",
        ),
        ("set stripe --concurrency 2", 1, "no app declares a shared limit 'stripe'"),
        ("set a b c --concurrency 2", 2, "a limit is named by DOMAIN TYPE, or by its NAME"),
        ("clear payments Charge", 1, "nothing is set of the limit payments/Charge: cmdbus limit"),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, arguments: str, code: int, sentence: str) -> None:
    result = run("limit", *arguments.split())
    assert (result.exit_code, sentence in " ".join(result.stderr.split())) == (code, True)
