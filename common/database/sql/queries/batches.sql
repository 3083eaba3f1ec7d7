-- Reports on batches, and the steward's search for what is left to do for them.

-- name: read_batch
SELECT batch_id, domain, name, data::text, status, total, completed, failed, canceled,
    in_troubleshooting, remaining, created_at, started_at, completed_at
FROM {schema}.batch WHERE batch_id = %(batch_id)s;

-- name: query_batches
-- The newest first.
SELECT batch_id, domain, name, data::text, status, total, completed, failed, canceled,
    in_troubleshooting, remaining, created_at, started_at, completed_at
FROM {schema}.batch
WHERE (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(name)s::text IS NULL OR name = %(name)s)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
ORDER BY created_at DESC, batch_id DESC
LIMIT %(limit)s OFFSET %(offset)s;

-- name: page_batches
-- The newest first, behind a position, without data.
SELECT batch_id, domain, name, NULL AS data, status, total, completed, failed, canceled,
    in_troubleshooting, remaining, created_at, started_at, completed_at
FROM {schema}.batch
WHERE (%(batch_id)s::uuid IS NULL OR batch_id = %(batch_id)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(domain)s::text IS NULL OR domain = %(domain)s)
    AND (%(name)s::text IS NULL OR name = %(name)s)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
    AND (%(after)s::timestamptz IS NULL OR created_at <= %(after)s
         AND (created_at, batch_id) < (%(after)s, %(after_id)s::uuid))
ORDER BY created_at DESC, batch_id DESC
LIMIT %(limit)s;

-- name: page_batches_for_monitors
-- The same without names, which monitors cannot read.
SELECT batch_id, domain, NULL AS name, NULL AS data, status, total, completed, failed, canceled,
    in_troubleshooting, remaining, created_at, started_at, completed_at
FROM {schema}.batch
WHERE (%(batch_id)s::uuid IS NULL OR batch_id = %(batch_id)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(domain)s::text IS NULL OR domain = %(domain)s)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
    AND (%(after)s::timestamptz IS NULL OR created_at <= %(after)s
         AND (created_at, batch_id) < (%(after)s, %(after_id)s::uuid))
ORDER BY created_at DESC, batch_id DESC
LIMIT %(limit)s;

-- name: query_batch_commands
-- The last sent first.
WITH keys AS MATERIALIZED (
    SELECT k.domain, k.command_id, k.created_at
    FROM {schema}.batch_keys(%(batch_id)s, %(status)s, %(limit)s::bigint + %(offset)s::bigint) k
    ORDER BY k.created_at DESC, k.command_id DESC
    LIMIT %(limit)s::bigint OFFSET %(offset)s::bigint
)
SELECT c.domain, c.command_id, c.type, c.status, c.priority, c.attempts, c.max_attempts,
    c.data::text, c.result::text, c.error_code, c.error_message, c.correlation_id, c.reply_to,
    c.batch_id, c.created_at, least(greatest(c.due_at, '0002-01-01'), '9998-12-31') AS due_at,
    c.started_at, c.finished_at, c.worker, c.key, c.unique_key,
    CASE WHEN c.expires_at IS NOT NULL
        THEN least(greatest(c.expires_at, '0002-01-01'), '9998-12-31') END AS expires_at,
    c.checkpoint::text, c.headers::text
FROM keys k, LATERAL (
    SELECT * FROM {schema}.command
    WHERE domain = k.domain AND command_id = k.command_id
    LIMIT 1
) c
ORDER BY c.created_at DESC, c.command_id DESC;

-- name: read_batch_follow_ups
-- What a batch sends when it is complete, and when it is canceled; with the status of that, if it
-- was sent and is kept.
SELECT q.after, (q.request).domain::text, (q.request).type::text, (q.request).command_id, c.status
FROM {schema}.batch_state b, LATERAL (
    VALUES ('COMPLETED', b.on_complete), ('CANCELED', b.on_cancel)
) q (after, request)
LEFT JOIN LATERAL (
    SELECT x.status FROM {schema}.command x
    WHERE x.domain = (q.request).domain::text AND x.command_id = (q.request).command_id
    LIMIT 1
) c ON true
WHERE b.batch_id = %(batch_id)s AND (q.request).domain IS NOT NULL
ORDER BY q.after DESC;

-- name: read_batch_audit
SELECT at, kind, NULL::integer AS attempt, NULL AS worker, operator, NULL AS code, message,
    details::text
FROM (
    SELECT created_at AS at, 1 AS rank, 'BATCH_CREATED' AS kind, NULL AS operator,
        NULL AS message, json_build_object('domain', domain, 'name', name) AS details
    FROM {schema}.batch_state WHERE batch_id = %(batch_id)s
    UNION ALL
    SELECT started_at, 2, 'BATCH_STARTED', NULL, NULL, NULL
    FROM {schema}.batch_state WHERE batch_id = %(batch_id)s AND started_at IS NOT NULL
    UNION ALL
    SELECT cancel_requested_at, 3, 'BATCH_CANCEL_REQUESTED', cancel_operator, cancel_reason, NULL
    FROM {schema}.batch_state WHERE batch_id = %(batch_id)s AND cancel_requested_at IS NOT NULL
    UNION ALL
    SELECT completed_at, 4, CASE status WHEN 'CANCELED' THEN 'BATCH_CANCELED'
        ELSE 'BATCH_COMPLETED' END, NULL, NULL, json_build_object(
            'status', status, 'total', total, 'completed', completed, 'failed', failed,
            'canceled', canceled)
    FROM {schema}.batch_state WHERE batch_id = %(batch_id)s AND completed_at IS NOT NULL
) audit
ORDER BY at, rank;

-- name: count_batches
SELECT status, count(*) FROM {schema}.batch GROUP BY status;

-- name: find_batches
-- Batches that are over, or have many lines in the tally, or whose cancellation has not ended, as
-- the process that should have seen to it may have died. The last ones, of which any number may
-- wait for an operator, take turns. Reads all of the tally.
SELECT f.batch_id, f.is_canceling
FROM (
    SELECT b.batch_id, b.cancel_requested_at IS NOT NULL AS is_canceling
    FROM (
        SELECT batch_id, count(*) AS lines,
            sum(completed + failed + canceled - total)::bigint AS ended
        FROM {schema}.tally GROUP BY batch_id
    ) t
    JOIN {schema}.batch_state b ON b.batch_id = t.batch_id
    WHERE b.completed_at IS NULL AND (t.lines >= %(lines)s OR t.ended >= b.remaining)
    UNION
    SELECT batch_id, true
    FROM {schema}.batch_state WHERE cancel_requested_at IS NOT NULL AND completed_at IS NULL
) f
ORDER BY f.is_canceling, random()
LIMIT %(count)s;
