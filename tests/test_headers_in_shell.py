"""Headers in the operator's command."""

import json
from uuid import UUID

from cli import here
from handlers import found
from queries import move_to_troubleshooting

from cmdbus import CommandBus


def sent(dsn: str, *headers: str) -> UUID:
    options = [part for header in headers for part in ("--header", header)]
    result = here("send", "payments", "Debit", *options, CMDBUS_DSN=dsn)
    assert result.exit_code == 0, result.stderr
    return UUID(result.stdout.strip())


def test_a_command_is_sent_with_headers_and_shown_with_them(dsn: str, bus: CommandBus) -> None:
    id_ = sent(dsn, "tenant=blue", "own=a=b\n\x1b[1m", "empty=")
    assert found(bus, id_).headers == {"tenant": "blue", "own": "a=b\n\x1b[1m", "empty": ""}
    shown = here("get", "payments", str(id_), CMDBUS_DSN=dsn).stdout
    lines = [line.split(None, 1) for line in shown.splitlines() if line.startswith("  header")]
    assert [value for _, value in lines] == ["tenant=blue", "own=a=b\\n\\x1b[1m", "empty="]
    record = json.loads(here("get", "payments", str(id_), "--json", CMDBUS_DSN=dsn).stdout)
    assert record["headers"] == {"tenant": "blue", "own": "a=b\n\x1b[1m", "empty": ""}
    move_to_troubleshooting(dsn)
    shown = here("get", "payments", str(id_), CMDBUS_DSN=dsn).stdout
    assert "tenant=blue" in shown


def test_a_command_without_headers_is_shown_as_before(dsn: str) -> None:
    id_ = str(sent(dsn))
    assert "header" not in here("get", "payments", id_, CMDBUS_DSN=dsn).stdout
    assert (
        json.loads(here("get", "payments", id_, "--json", CMDBUS_DSN=dsn).stdout)["headers"] == {}
    )


def test_wrong_headers_get_one_sentence(dsn: str, bus: CommandBus) -> None:
    name = "the name of a header must be a letter and up to 99 more"
    for sentence, *headers in (
        ("Invalid value for --header: it must be NAME=VALUE.", "tenant"),
        (name, "=x"),
        (name, "a b=x"),
        ("--header has one name twice: a name has one value", "a=1", "a=2"),
        ("header 'a' must be text of at most 4000 characters", f"a={'x' * 4001}"),
    ):
        options = [part for header in headers for part in ("--header", header)]
        wrong = here("send", "payments", "Debit", *options, CMDBUS_DSN=dsn)
        assert wrong.exit_code == 2 and sentence in wrong.stderr, wrong.stderr
    assert bus.query() == []
