"""What the checks of headers find: by their names, changes that make a good history wrong."""

from chaos_history import Change, both, change, drop

_SENT = {"tenant": "north", "note": "x"}
_PASSED_ON = {"tenant": "north"}
#: The Noop was sent with headers, of which its reply has one; what adds to its batch, too.
WITH_HEADERS = both(
    change("rows", 1, headers=_SENT, asked_headers=_SENT),
    change("rows", 1, correlation_id="c", asked_correlation_id="c"),
    change("rows", 2, headers=_PASSED_ON),
    change("rows", 4, headers=_SENT, asked_headers=_SENT),
    change("rows", 5, headers=_PASSED_ON),
)


def broken(broken: Change) -> Change:
    return both(WITH_HEADERS, broken)


#: As BROKEN.
BROKEN_HEADERS: dict[str, dict[str, Change]] = {
    "headers-are-kept": {
        "one is lost": broken(change("rows", 1, headers=_PASSED_ON)),
        "one of a command without headers": change("rows", 0, headers=_PASSED_ON),
        "another correlation": broken(change("rows", 1, correlation_id="d")),
    },
    "headers-are-passed-on": {
        "a reply lacks one": broken(change("rows", 2, headers={})),
        "a reply has one too many": broken(change("rows", 2, headers=_SENT)),
        "what a handler added lacks one": broken(change("rows", 5, headers={})),
    },
}
#: What they do not find: a sender that is nowhere, which others find.
KEPT_BY_HEADERS = [("headers-are-passed-on", broken(drop("rows", 4)))]
