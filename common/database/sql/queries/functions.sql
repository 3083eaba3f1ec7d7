-- Calls a function of the schema; see statement() in statements.py.

-- name: call
SELECT * FROM {schema}.{function}({arguments});
