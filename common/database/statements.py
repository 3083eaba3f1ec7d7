"""The SQL files, rendered for a schema. Nothing else in the project holds SQL."""

from functools import cache
from hashlib import sha256
from importlib import resources

from cmdbus.checks import check_schema

_FOLDER = resources.files("cmdbus.database") / "sql"


def load() -> None:
    """Reads all of them now: later the process may have no descriptor left, or another version
    may have been installed over this one."""
    for file in _FOLDER.iterdir():
        _text(file.name)


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def statement(name: str, schema: str) -> bytes:
    """sql/<name>.sql, ready to be executed with parameters."""
    return render(name, schema).encode()


def render(name: str, schema: str, **more: str) -> str:
    """Replaces {schema}, {channel} and what `more` names; an identifier is quoted here.

    Names are checked before, so that they mean the same in identifiers, literals
    and function bodies.
    """
    text = (
        _text(f"{name}.sql")
        .replace("{schema}", f'"{check_schema(schema)}"')
        .replace("{channel}", schema)
    )
    for key, value in more.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def migrations() -> list[str]:
    """Names of the migration files, in order; a file's place in the list is its version."""
    names = (entry.name.removesuffix(".sql") for entry in _FOLDER.iterdir())
    return sorted(name for name in names if name.startswith("migration_"))


@cache
def digest(name: str) -> str:
    """Tells sql/<name>.sql from what it was in another build."""
    return sha256(_text(f"{name}.sql").encode()).hexdigest()[:16]
