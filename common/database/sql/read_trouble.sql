-- The newest first. The reason is that of the event by which it came there.
SELECT t.*, (
    SELECT e.details ->> 'reason'::text FROM {schema}.event e
    WHERE e.domain = t.domain AND e.command_id = t.command_id
        AND e.kind = 'MOVED_TO_TROUBLESHOOTING_QUEUE'
    ORDER BY e.id DESC LIMIT 1)
FROM (
    SELECT t.domain, t.command_id, t.type, 'IN_TROUBLESHOOTING_QUEUE' AS status, t.priority,
        t.attempts::integer, t.max_attempts::integer, t.data::text, NULL AS result, t.error_code,
        t.error_message, t.correlation_id, t.reply_to, NULL::uuid AS batch_id, t.created_at,
        least(greatest(coalesce(t.due_at, t.created_at), '0002-01-01'), '9998-12-31') AS due_at,
        t.claimed_at AS started_at, NULL::timestamptz AS finished_at, i.worker, t.failed_at
    FROM {schema}.troubleshooting t LEFT JOIN {schema}.incarnation i ON i.id = t.claimer
    WHERE (%(domain)s::text IS NULL OR t.domain = %(domain)s)
        AND (%(type)s::text IS NULL OR t.type = %(type)s)
        AND (%(error_code)s::text IS NULL OR t.error_code = %(error_code)s)
        AND (%(since)s::timestamptz IS NULL OR t.failed_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR t.failed_at < %(until)s)
    ORDER BY t.failed_at DESC, t.domain DESC, t.command_id DESC
    LIMIT %(limit)s OFFSET %(offset)s
) t
ORDER BY t.failed_at DESC, t.domain DESC, t.command_id DESC;
