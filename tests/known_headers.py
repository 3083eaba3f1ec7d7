"""Headers that tests send, and some that no role can store."""

import json

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": TRACE, "tenant": "blue ä", "own": 'a "quoted"\ttext\\'}
#: What the schema passes on of them.
PASSED_ON = {"traceparent": TRACE, "tenant": "blue ä"}
HOSTILE = [
    "[]",
    '"text"',
    "5",
    "null",
    '{"a": 1}',
    '{"a": null}',
    '{"a": {"b": "c"}}',
    '{"a b": "c"}',
    '{"": "c"}',
    '{"a": "\\u0000"}',
    '{"a\\u0000": "c"}',
    '{"a": "\\ud800"}',
    json.dumps({f"h{i}": "" for i in range(33)}),
    json.dumps({"a": "x" * 9000}),
    json.dumps({"a": "x"}) + " " * 9000,
    '{"a":' * 1600 + "1" + "}" * 1600,
]
