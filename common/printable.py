"""Text from elsewhere, made safe to print: a terminal obeys escape sequences, and a newline
would begin a line that looks like one of cmdbus's own. For all output but JSON, which escapes such
characters itself. Pure.
"""

import re

#: C0 and C1 controls and DEL, marks and overrides of writing direction, separators of lines
#: and paragraphs, and halves of surrogate pairs, which no UTF-8 can hold.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_NOT_IN_TEXT = re.compile(f"[{_UNSAFE}]")
_NOT_IN_A_LINE = re.compile(f"[\n{_UNSAFE}]")


def printable(text: str) -> str:
    """Keeps newlines and tabs; other controls are shown as escapes like \\x1b."""
    return _NOT_IN_TEXT.sub(_escape, text)


def one_line(text: str) -> str:
    """Like `printable`, and a newline is shown as \\n."""
    return _NOT_IN_A_LINE.sub(_escape, text)


def joined(text: str) -> str:
    """The lines of a message as one."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "; ".join(line for line in lines if line).replace(":; ", ": ")


def hanging(text: str, margin: str) -> list[str]:
    """The lines of a text, each printable, and those after the first behind a margin."""
    first, *rest = printable(text).split("\n")
    return [first, *(f"{margin}{line}" for line in rest)]


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def with_notes(error: BaseException, text: str) -> str:
    """The text of an error, and its notes."""
    return "; ".join([text, *getattr(error, "__notes__", ())])
