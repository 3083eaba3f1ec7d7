"""Text that a database of another encoding than UTF-8 can hold. Pure."""

import codecs
import re

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def escaped(text: str, encoding: str) -> str:
    """Characters that the server's `encoding` lacks as backslash escapes; of an encoding that
    Python does not know, all that are not ASCII."""
    codec = _codec(encoding)
    return text.encode(codec, "backslashreplace").decode(codec)


def escaped_json(text: str, encoding: str) -> str:
    """The same in JSON text. The backslash is escaped in turn: PostgreSQL reads no JSON that
    names a character that its encoding lacks."""
    codec = _codec(encoding)

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        replaced = character.encode(codec, "backslashreplace").decode(codec)
        return character if replaced == character else f"\\{replaced}"

    return _NOT_ASCII.sub(escape, text)


def _codec(encoding: str) -> str:
    """Every encoding of a server has ASCII in it."""
    for name in (encoding, encoding.replace("WIN", "cp")):
        try:
            return codecs.lookup(name).name
        except LookupError:
            continue
    return "ascii"
