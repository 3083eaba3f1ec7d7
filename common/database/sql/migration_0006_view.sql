-- One row for each command, wherever it is. A condition reaches the tables' indexes only if a
-- column has the same type in all of them: that of troubleshooting and finished.
CREATE VIEW {schema}.command AS
SELECT c.domain, c.command_id, c.type, c.status, c.priority,
    -- The charged executions, and the running one.
    (c.attempts + CASE WHEN c.status = 'IN_PROGRESS' THEN 1 ELSE 0 END)::integer AS attempts,
    c.max_attempts::integer AS max_attempts,
    c.data, c.result, c.error_code, c.error_message, c.correlation_id, c.reply_to,
    NULL::uuid AS batch_id,
    c.created_at, c.due_at, c.claimed_at AS started_at, c.finished_at, i.worker
FROM (
    SELECT domain::text, command_id, type::text,
        CASE WHEN lease_until > clock_timestamp() THEN 'IN_PROGRESS' ELSE 'PENDING' END AS status,
        priority::smallint, attempts, max_attempts::smallint, data::json, NULL::json AS result,
        error_code, error_message, correlation_id, reply_to::text, created_at,
        coalesce(due_at::timestamptz, created_at) AS due_at, claimed_at,
        NULL::timestamptz AS finished_at, claimer
    FROM {schema}.ready
    UNION ALL
    SELECT domain::text, command_id, type::text, 'PENDING', priority::smallint, attempts,
        max_attempts::smallint, data::json, NULL, error_code, error_message, correlation_id,
        reply_to::text, created_at, due_at::timestamptz, claimed_at, NULL, claimer
    FROM {schema}.scheduled
    UNION ALL
    SELECT domain, command_id, type, 'IN_TROUBLESHOOTING_QUEUE', priority, attempts, max_attempts,
        data, NULL, error_code, error_message, correlation_id, reply_to, created_at,
        coalesce(due_at, created_at), claimed_at, NULL, claimer
    FROM {schema}.troubleshooting
    UNION ALL
    SELECT domain, command_id, type, status, priority, attempts, max_attempts, data, result,
        error_code, error_message, correlation_id, reply_to, created_at,
        coalesce(due_at, created_at), claimed_at, finished_at, claimer
    FROM {schema}.finished
) c
LEFT JOIN {schema}.incarnation i ON i.id = c.claimer;
