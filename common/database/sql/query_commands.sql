-- The newest first. What was finished before `since` was sent before it: the
-- condition on finished_at lets whole partitions of history go unread.
SELECT domain, command_id, type, status, priority, attempts, max_attempts,
    data::text, result::text, error_code, error_message, correlation_id, reply_to, batch_id,
    created_at, least(greatest(due_at, '0002-01-01'), '9998-12-31') AS due_at,
    started_at, finished_at, worker
FROM {schema}.command
WHERE (%(domain)s::text IS NULL OR domain = %(domain)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(type)s::text IS NULL OR type = %(type)s)
    AND (%(since)s::timestamptz IS NULL
         OR (created_at >= %(since)s AND (finished_at IS NULL OR finished_at >= %(since)s)))
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
ORDER BY created_at DESC, command_id DESC
LIMIT %(limit)s OFFSET %(offset)s;
