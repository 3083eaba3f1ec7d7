"""How statements and values are written for drivers with other types and parameters."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from cmdbus.database.statements import call, parameter_types
from cmdbus.integrations.dbapi_statements import as_text, rendered

TEXT = b"""
-- About ? and :x.
SELECT %(a)s::uuid[], '100%%', %(b)s, b < %(b)s::integer, %(a)s::uuid[];
"""


@pytest.mark.parametrize(
    ("style", "placeholders", "names"),
    [
        ("pyformat", ["%(a)s", "%(b)s", "%(b)s", "%(a)s"], ("a", "b")),
        ("format", ["%s"] * 4, ("a", "b", "b", "a")),
        ("qmark", ["?"] * 4, ("a", "b", "b", "a")),
        ("named", [":a", ":b", ":b", ":a"], ("a", "b")),
        ("numeric", [":1", ":2", ":2", ":1"], ("a", "b")),
        ("numeric_dollar", ["$1", "$2", "$2", "$1"], ("a", "b")),
    ],
)
def test_parameters_are_texts_in_the_drivers_style_and_are_cast(
    style: str, placeholders: list[str], names: tuple[str, ...]
) -> None:
    a, b, c, d = placeholders
    percent = "%%" if "format" in style else "%"
    text = (
        f"SELECT {a}::text::uuid[], '100{percent}', {b}::text::integer, b < {c}::text::integer, "
        f"{d}::text::uuid[]"
    )
    assert rendered(TEXT, style) == (text, names)


@pytest.mark.parametrize("style", ["pyformat", "qmark"])
def test_without_parameters_a_driver_reads_no_percent_signs(style: str) -> None:
    assert rendered(b"SELECT '100%%';", style) == ("SELECT '100%'", ())


def test_a_call_has_the_types_of_the_function() -> None:
    text, _ = rendered(call("call", "shop", "enqueue", ("domain", "delay", "run_at")), "numeric")
    assert text == (
        'SELECT * FROM "shop".enqueue(p_domain => :1::text::text, '
        "p_delay => :2::text::double precision, p_run_at => :3::text::timestamptz)"
    )


def test_the_types_of_every_parameter_of_a_function_are_known() -> None:
    assert parameter_types("identify") == {
        "domains": "text[]",
        "command_ids": "uuid[]",
        "call": "bigint",
        "brought": "boolean",
    }


def test_values_become_the_texts_that_the_server_reads() -> None:
    id_ = UUID(int=1)
    assert [*map(as_text, (None, True, 5, 1.5, 'a"b', id_))] == [
        *(None, "true", "5", "1.5", 'a"b', "00000000-0000-0000-0000-000000000001")
    ]
    time = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert as_text(time) == "2030-01-02T03:04:05.000006+00:00"
    interval = timedelta(days=1, seconds=2, microseconds=3)
    assert as_text(interval) == "1 days 2 seconds 3 microseconds"
    assert as_text(["a", None, 'b"\\']) == r'{"a",NULL,"b\"\\"}'
    assert as_text([]) == "{}"
