-- One command, wherever it is; a single statement, so that none is missed while it
-- moves. Payloads as text, decoded with care; times within Python's range.
SELECT domain, command_id, type, status, priority, attempts, max_attempts,
    data::text, result::text, error_code, error_message, correlation_id, reply_to, batch_id,
    created_at, least(greatest(due_at, '0002-01-01'), '9998-12-31') AS due_at,
    started_at, finished_at, worker
FROM {schema}.command
WHERE domain = %(domain)s AND command_id = %(command_id)s;
