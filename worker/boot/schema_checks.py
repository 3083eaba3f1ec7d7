"""Checks of the schema before a supervisor starts."""

from collections.abc import Iterator

from cmdbus.counting import count_of
from cmdbus.database import schema as schemas
from cmdbus.database.statements import created, statement
from cmdbus.errors import SchemaError
from cmdbus.readiness import Check, Finding
from cmdbus.settings import Settings
from cmdbus.worker.boot.trial import try_claim
from cmdbus.worker.claims.claim import Connection

#: A day's table and its indexes; and looks at all days that should be possible at a time.
_LOCKS_A_DAY, _MIN_LOOKS = 3, 10
#: The trigger of the commands that wait at a limit.
_LEAVES_TURNS = "leave_turns"
_WITHOUT_TRIGGER = {
    "wake": "it wakes no idle worker, and waits for the next poll",
    _LEAVES_TURNS: "commands that wait at a limit may not be claimed",
}


def check_schema(connection: Connection, settings: Settings, role: str) -> Iterator[Check]:
    """Ends at the first check that makes the following ones impossible."""
    schema = settings.schema
    rights = _check_rights(connection, schema, role)
    yield rights
    if rights.finding is Finding.FATAL:
        return
    for objects in _check_objects(connection, schema):
        yield objects
        if objects.finding is Finding.FATAL:
            return
    yield try_claim(connection, settings.dsn or "", schema)
    yield from _check_history(connection, schema)
    yield from _check_triggers(connection, schema)
    yield from _check_sequences(connection, schema)


def _check_rights(connection: Connection, schema: str, role: str) -> Check:
    rows = connection.execute(statement("read_missing_rights", schema)).fetchall()
    missing = [row[0] for row in rows]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        sentence = f"role {role!r} lacks {', '.join(missing[:3])}{more} in schema {schema!r}"
        fix = f"run cmdbus init --worker {role} as the schema's owner"
        if missing[0].startswith("BYPASSRLS"):
            fix = f"ALTER ROLE {role} BYPASSRLS, or ALTER TABLE ... DISABLE ROW LEVEL SECURITY"
        return Check("rights", Finding.FATAL, sentence, fix)
    try:
        schemas.check(connection, schema)
    except SchemaError as error:
        return Check("schema", Finding.FATAL, str(error))
    return Check("schema", Finding.OK, f"{schema}, of this version, and {role!r} has its rights")


def _check_objects(connection: Connection, schema: str) -> Iterator[Check]:
    """Whether something that cmdbus init has made was dropped."""
    made = [each for each in created(schema) if each[0] != "TRIGGER"]
    indexes = {name: text for kind, name, text in made if kind == "INDEX"}
    keys = [f"{name}_pkey" for kind, name, _ in made if kind == "TABLE"]
    values = {
        "relations": [*keys, *(name for kind, name, _ in made if kind != "FUNCTION")],
        "functions": [name for kind, name, _ in made if kind == "FUNCTION"],
    }
    rows = connection.execute(statement("read_missing_objects", schema), values).fetchall()
    missing = sorted(name for (name,) in rows)
    for name in missing:
        if name in indexes:
            sentence = f"the index {name} of schema {schema!r} is missing: whole tables are read"
            yield Check("objects", Finding.WARNING, sentence, indexes[name])
    if lacking := [name for name in missing if name not in indexes]:
        sentence = f"schema {schema!r} lacks {', '.join(lacking)}, which cmdbus init had made"
        fix = (
            "make them again with their statements in cmdbus/database/sql/schema, and run cmdbus "
            "init with the roles that use the schema"
        )
        yield Check("objects", Finding.FATAL, sentence, fix)


def _check_history(connection: Connection, schema: str) -> Iterator[Check]:
    """A look for a command locks each day of history."""
    [(days, locks)] = connection.execute(statement("read_locks", schema)).fetchall()
    looks = locks // max(1, days * _LOCKS_A_DAY)
    if looks < _MIN_LOOKS:
        sentence = (
            f"history has {count_of(days, 'day')}: the server has locks for {looks} looks at all "
            f"of them at a time (get, wait, cancel), and the next one fails"
        )
        fix = f"raise max_locks_per_transaction to {days * _LOCKS_A_DAY}, or keep history for less"
        yield Check("history", Finding.WARNING, sentence, fix)


def _check_triggers(connection: Connection, schema: str) -> Iterator[Check]:
    """An ENABLE TRIGGER after a DISABLE TRIGGER changes their mode, too."""
    for name, trigger, mode in connection.execute(statement("read_triggers", schema)).fetchall():
        table = f"{schema}.{name}"
        what = "a row that is replicated or restored" if mode == "O" else "a send"
        sentence = (
            f"the trigger {trigger} of {table} {'does not fire' if mode else 'is missing'} for "
            f"{what}: {_WITHOUT_TRIGGER[trigger]}"
        )
        fix = f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {trigger}"
        if not mode:
            made = [text.split() for kind, _, text in created(schema) if kind == "TRIGGER"]
            [create] = [words for words in made if {trigger, f'"{schema}".{name}'} <= {*words}]
            fix = f"{' '.join(create)}; {fix}"
        if trigger == _LEAVES_TURNS:
            fix += f"; SELECT {schema}.limits_changed()"
        yield Check("triggers", Finding.WARNING, sentence, fix)


def _check_sequences(connection: Connection, schema: str) -> Iterator[Check]:
    behind = connection.execute(statement("read_sequences", schema)).fetchall()
    if behind:
        tables = ", ".join(name for name, _, _ in behind)
        sentence = (
            f"sequences of schema {schema!r} are behind the ids of {tables}, as after "
            f"logical replication or a restore of data alone: sends get ids that exist, and fail"
        )
        repairs = (
            f"run SELECT setval('{schema}.{sequence}', max({column})) FROM {schema}.{name}"
            for name, column, sequence in behind
        )
        yield Check("sequences", Finding.FATAL, sentence, "; ".join(repairs))
