-- Calls a function of the schema; see statement() in statements.py.

-- name: call
SELECT * FROM {schema}.{function}({arguments});

-- name: call_and_note
-- Also notes what a hook has changed in the command that the function sends, unless it refuses it.
SELECT a.*, CASE WHEN a.refusal IS NULL THEN {schema}.note_changes(
    ARRAY[%(domain)s::text], ARRAY[%(command_id)s::uuid], ARRAY[%(changes)s::json]) END
FROM {schema}.{function}({arguments}) a;

-- name: call_and_date
-- Also returns when the command was sent, unless the function refuses it.
SELECT a.*, CASE WHEN a.refusal IS NULL
    THEN {schema}.sent_at(%(domain)s::text, %(command_id)s::uuid) END
FROM {schema}.{function}({arguments}) a;
