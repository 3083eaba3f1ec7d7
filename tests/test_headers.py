"""Headers themselves: what is taken, how they are written, and what readers make of what others
wrote."""

import copy
import itertools
import pickle
import re
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from cmdbus.headers import (
    FORWARDED,
    MAX_BYTES,
    NO_HEADERS,
    Headers,
    check_header_name,
    decode_headers,
    encode_headers,
    encode_with_defaults,
    merged,
    selected,
)

RULE = "must be a letter and up to 99 more of A-Z a-z 0-9 _ . - (ASCII)"
TEXT = "must be text of at most 4000 characters without NUL"


class Name(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "another"


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (None, None),
        ({}, None),
        (MappingProxyType({}), None),
        ({"tenant": "blue"}, '{"tenant":"blue"}'),
        (MappingProxyType({"x-Y.z_1": ""}), '{"x-Y.z_1":""}'),
        ({"a": 'quote " and \\ and \n', "b": "ä€😀"}, r'{"a":"quote \" and \\ and \n","b":"ä€😀"}'),
        ({Name("tenant"): Name("blue")}, '{"tenant":"blue"}'),
    ],
)
def test_headers_are_written_as_they_are(headers: Mapping[str, str], text: str | None) -> None:
    assert encode_headers(headers) == text
    assert decode_headers(text) == (headers or {})


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ("tenant", "headers must be a mapping of names to texts, not of type str"),
        ([], "headers must be a mapping of names to texts, not of type list"),
        (0, "headers must be a mapping of names to texts, not of type int"),
        ({f"h{i}": "" for i in range(33)}, "there are 33 headers: at most 32 are taken"),
        ({"": "x"}, f"the name of a header {RULE}, not ''"),
        ({"1st": "x"}, f"the name of a header {RULE}, not '1st'"),
        ({"a:b": "x"}, f"the name of a header {RULE}, not 'a:b'"),
        ({"a b": "x"}, f"the name of a header {RULE}, not 'a b'"),
        ({"straße": "x"}, f"the name of a header {RULE}, not 'straße'"),
        ({"a\n": "x"}, f"the name of a header {RULE}, not 'a\\n'"),
        ({5: "x"}, f"the name of a header {RULE}, not 5"),
        ({"a" * 101: "x"}, f"the name of a header {RULE}, not '{'a' * 101}'"),
        ({"a": None}, f"header 'a' {TEXT}, not of type NoneType"),
        ({"a": b"x"}, f"header 'a' {TEXT}, not of type bytes"),
        ({"a": "secret\0"}, f"header 'a' {TEXT}, and this has a NUL"),
        ({"a": "secret\ud800"}, f"header 'a' {TEXT}, and this has half a surrogate pair"),
        ({"a": "x" * 4001}, f"header 'a' {TEXT}, which has 4001"),
        (
            {"a": "x" * 4000, "b": "x" * 4000, "c": "x" * 200},
            f"headers have 8222 bytes as JSON: at most {MAX_BYTES} are taken",
        ),
        (
            {"a": "€" * 2729},
            f"headers have 8195 bytes as JSON: at most {MAX_BYTES} are taken",
        ),
    ],
)
def test_one_sentence_says_what_is_wrong(headers: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        encode_headers(headers)


def test_what_just_fits_is_taken() -> None:
    encode_headers({f"h{i}": "x" for i in range(32)})
    encode_headers({"a" * 100: "x" * 4000})
    text = encode_headers({"a": "x" * 4000, "b": "x" * 4000, "c": "x" * 170})
    assert text is not None
    assert len(text) == MAX_BYTES


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (None, {}),
        ("[]", {}),
        ("null", {}),
        ('"text"', {}),
        ("{", {}),
        ("[" * 100_000, {}),
        ('{"a": 1, "b": "x", "c": null, "d": {"e": "f"}}', {"b": "x"}),
        ('{"a b": "x", "": "x", "ok": "x"}', {"ok": "x"}),
        ('{"nul": "\\u0000", "half": "\\ud800", "ok": " "}', {"ok": " "}),
        (f'{{"long": "{"x" * 4001}", "ok": ""}}', {"ok": ""}),
        (' { "a" : "b" }\n', {"a": "b"}),
    ],
)
def test_readers_leave_out_what_could_not_be_sent(text: str | None, read: dict[str, str]) -> None:
    assert decode_headers(text) == read


def test_a_commands_headers_are_read_only_and_like_any_value() -> None:
    headers = Headers({"tenant": "blue"})
    assert headers == {"tenant": "blue"}
    assert repr(headers) == "{'tenant': 'blue'}"
    assert pickle.loads(pickle.dumps(headers)) == headers
    assert copy.deepcopy(headers) == headers
    assert hash(headers) == hash(Headers({"tenant": "blue"}))
    assert {**headers, "b": "c"} == {"tenant": "blue", "b": "c"}
    with pytest.raises(TypeError):
        headers["tenant"] = "red"  # type: ignore[index]
    assert not NO_HEADERS


def test_a_later_layer_wins() -> None:
    assert merged(None, {}) is None
    assert merged({"a": "1", "b": "1"}, None, {"b": "2"}) == {"a": "1", "b": "2"}
    assert selected({"tenant": "blue", "secret": "x"}, FORWARDED) == {"tenant": "blue"}
    assert check_header_name("tenant") == "tenant"


def test_headers_may_change_while_they_are_passed_on(frequent_switches: None) -> None:
    """By another thread of the handler; there are more than fit."""
    passed = {name: "x" * 4_000 for name in ("first", "second", "third")}
    is_over = threading.Event()

    def change() -> None:
        for number in itertools.cycle(range(7)):
            if is_over.is_set():
                return
            passed[f"t{number}"] = "y"
            passed.pop(f"t{(number + 3) % 7}", None)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            assert {"first", "second"} <= {*decode_headers(encode_with_defaults(None, passed))}
    finally:
        is_over.set()
        thread.join()
