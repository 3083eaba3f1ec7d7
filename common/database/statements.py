"""The SQL of the project, rendered for a schema. No other module holds SQL.

sql/schema/ holds the schema in chapters, which together are version 1: until the first release,
edit them. From then on each later version is a file of sql/migrations/. sql/queries/ holds
statements, each below a line "-- name: x".
"""

import re
from functools import cache
from hashlib import sha256
from importlib import resources

from cmdbus.checks import check_schema

_FOLDER = resources.files("cmdbus.database") / "sql"
_BASELINE, _SETTINGS = "baseline", "function_settings"
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
#: The beginning of a statement, up to its first semicolon.
_CREATE = re.compile(
    r"^CREATE (?:CONSTRAINT )?(TABLE|VIEW|SEQUENCE|INDEX|FUNCTION|TRIGGER)"
    r' (?:"\w+"\.)?(\w+)[^;]*',
    re.MULTILINE,
)
#: With its type, in the head of a function.
_PARAMETER = re.compile(r"[(,]\s*p_(\w+) (\w+(?: precision)?(?:\[\])?)(?=,| DEFAULT|\s*\))")


@cache
def load() -> dict[str, str]:
    """Reads all files at once: later the process may have no descriptor left, or another version
    may have been installed over this one."""
    chapters = _files("schema")
    texts = {_SETTINGS: chapters.pop(_SETTINGS), _BASELINE: "\n".join(chapters.values())}
    for queries in _files("queries").values():
        _, *named = _NAME.split(queries)
        texts.update(zip(named[::2], named[1::2], strict=True))
    return texts | _files("migrations")


def _files(folder: str) -> dict[str, str]:
    """Text by name, in the order of names."""
    if not (_FOLDER / folder).is_dir():
        return {}
    files = sorted((_FOLDER / folder).iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".sql"): file.read_text(encoding="utf-8") for file in files}


@cache
def statement(name: str, schema: str, arguments: tuple[str, ...] = ()) -> bytes:
    """The statement of this name or, if there is none, a call of the schema's function of this
    name with these arguments; ready to be executed with values."""
    if name in load():
        return render(name, schema).encode()
    return call("call", schema, name, arguments)


def call(form: str, schema: str, function: str, arguments: tuple[str, ...]) -> bytes:
    """A statement of this form that calls a function with these arguments."""
    values = ", ".join(f"p_{argument} => %({argument})s" for argument in arguments)
    return render(form, schema, function=function, arguments=values).encode()


def render(name: str, schema: str, **more: str) -> str:
    """Replaces {schema}, {channel} and the names of `more`. A schema's name is so restricted that
    it means the same in identifiers, literals and function bodies."""
    identifier = f'"{check_schema(schema)}"'
    text = load()[name].replace("{schema}", identifier).replace("{channel}", schema)
    for key, value in more.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def versions() -> list[str]:
    """Names of the texts that make the schema, in the order of their versions, from 1."""
    return [name for name in load() if name == _BASELINE or name[0].isdigit()]


def created(schema: str) -> list[tuple[str, str, str]]:
    """Kind and name of each relation, function and trigger that the versions create, and the
    beginning of its statement: the whole one of an index or a trigger."""
    texts = (render(version, schema) for version in versions())
    return [(made[1], made[2], made[0]) for text in texts for made in _CREATE.finditer(text)]


@cache
def parameter_types(function: str) -> dict[str, str]:
    """The types of a function's parameters, by their names in its calls."""
    wanted = "FUNCTION", function
    [text] = [text for *made, text in created("cmdbus") if (*made,) == wanted]
    return {found[1]: found[2] for found in _PARAMETER.finditer(text)}


@cache
def digest(version: str) -> str:
    """Distinguishes a version's text from that of another build."""
    return sha256(load()[version].encode()).hexdigest()[:16]
