-- The views, which users read.

-- One row for each command, wherever it is. A condition reaches the tables' indexes only if a
-- column has the same type in all of them: that of troubleshooting and finished.
CREATE VIEW {schema}.command AS
SELECT c.domain, c.command_id, c.type, c.status, c.priority,
    -- Charged executions, and the running one.
    (c.attempts + CASE WHEN c.status = 'IN_PROGRESS' THEN 1 ELSE 0 END)::integer AS attempts,
    c.max_attempts::integer AS max_attempts,
    c.data, c.result, c.error_code, c.error_message, c.correlation_id, c.reply_to,
    c.batch_id, c.created_at, c.due_at, c.claimed_at AS started_at, c.finished_at, i.worker,
    c.key, c.unique_key, c.expires_at,
    CASE WHEN c.finished_at IS NULL THEN (
        SELECT k.data::json FROM {schema}.checkpoint k
        WHERE k.domain = c.domain AND k.command_id = c.command_id AND k.created_at = c.created_at
    ) END AS checkpoint, c.headers
FROM (
    SELECT domain::text, command_id, type::text,
        CASE WHEN lease_until > clock_timestamp() THEN 'IN_PROGRESS' ELSE 'PENDING' END AS status,
        priority::smallint, attempts, max_attempts::smallint, data::json, NULL::json AS result,
        error_code, error_message, correlation_id, reply_to::text, created_at,
        coalesce(due_at::timestamptz, created_at) AS due_at, claimed_at,
        NULL::timestamptz AS finished_at, claimer, batch_id, key::text, unique_key::text,
        expires_at::timestamptz, headers::json
    FROM (TABLE {schema}.ready UNION ALL TABLE {schema}.scheduled
          UNION ALL TABLE {schema}.limited) waiting
    UNION ALL
    SELECT domain, command_id, type, 'IN_TROUBLESHOOTING_QUEUE', priority, attempts, max_attempts,
        data, NULL, error_code, error_message, correlation_id, reply_to, created_at,
        coalesce(due_at, created_at), claimed_at, NULL, claimer, batch_id, key, unique_key,
        expires_at, headers::json
    FROM {schema}.troubleshooting
    UNION ALL
    SELECT domain, command_id, type, status, priority, attempts, max_attempts, data, result,
        error_code, error_message, correlation_id, reply_to, created_at,
        coalesce(due_at, created_at), claimed_at, finished_at, claimer, batch_id, key,
        unique_key, expires_at, headers::json
    FROM {schema}.finished
) c
LEFT JOIN {schema}.incarnation i ON i.id = c.claimer;

-- One row for each batch, with counters that are exact: a command counts in the transaction that
-- ends it.
CREATE VIEW {schema}.batch AS
SELECT b.batch_id, b.domain::text AS domain, b.name::text AS name, b.data::json AS data, b.status,
    b.total + t.total AS total, b.completed + t.completed AS completed,
    b.failed + t.failed AS failed, b.canceled + t.canceled AS canceled,
    (SELECT count(*) FROM {schema}.troubleshooting q WHERE q.batch_id = b.batch_id)
        AS in_troubleshooting,
    b.remaining + t.total - t.completed - t.failed - t.canceled AS remaining,
    b.created_at, b.started_at, b.completed_at
FROM {schema}.batch_state b, LATERAL (
    SELECT coalesce(sum(l.total), 0)::bigint AS total,
        coalesce(sum(l.completed), 0)::bigint AS completed,
        coalesce(sum(l.failed), 0)::bigint AS failed,
        coalesce(sum(l.canceled), 0)::bigint AS canceled
    FROM {schema}.tally l WHERE l.batch_id = b.batch_id
) t;
