-- Processes: what their managers' handlers read and write, and reports.

-- name: lock_processes
SELECT process_id, domain::text, type::text, status, step, state::text, version, number,
    awaited_domain, awaited_id, undoing, timer_id, ending, error
FROM {schema}.lock_processes(%(process_ids)s::uuid[], %(skips_locked)s);

-- name: advance_processes
SELECT {schema}.advance_processes(
    %(domain)s, %(process_ids)s::uuid[], %(numbers)s::integer[], %(statuses)s::text[],
    %(steps)s::text[], %(undoings)s::integer[], %(states)s::json[], %(versions)s::integer[],
    %(endings)s::text[], %(errors)s::text[], %(outcomes)s::text[], %(problems)s::text[],
    %(timer_ids)s::uuid[], %(to_domains)s::text[], %(types)s::text[], %(data)s::json[],
    %(command_ids)s::uuid[], %(own)s::boolean[], %(priorities)s::smallint[],
    %(delays)s::double precision[], %(run_at)s::timestamptz[], %(max_attempts)s::integer[],
    %(deadlines)s::double precision[], %(new_timer_ids)s::uuid[], %(keys)s::text[],
    %(expires_at)s::timestamptz[], %(headers)s::json[]);

-- name: read_undoable
-- The steps that were completed, the latest first, and what became of their compensations. A step
-- of several commands is among them however it ended: some of it may have been done.
SELECT number, step, undone
FROM {schema}.process_step
WHERE process_id = %(process_id)s AND undoes IS NULL
    AND (outcome = 'SUCCESS' OR type = 'process:batch' AND outcome IS NOT NULL)
ORDER BY number DESC;

-- name: read_process
SELECT process_id, domain, type, status, step, state::text, error, batch_id, created_at,
    updated_at, finished_at
FROM {schema}.process
WHERE process_id = %(process_id)s;

-- name: query_processes
-- The newest first.
SELECT process_id, domain, type, status, step, state::text, error, batch_id, created_at,
    updated_at, finished_at
FROM {schema}.process
WHERE (%(domain)s::text IS NULL OR domain = %(domain)s)
    AND (%(type)s::text IS NULL OR type = %(type)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(batch_id)s::uuid IS NULL OR batch_id = %(batch_id)s)
    AND (NOT %(unfinished)s::boolean OR finished_at IS NULL)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
ORDER BY created_at DESC, process_id DESC
LIMIT %(limit)s OFFSET %(offset)s;

-- name: page_processes
-- The newest first, behind a position, without states.
SELECT process_id, domain, type, status, step, NULL AS state, error, batch_id, created_at,
    updated_at, finished_at
FROM {schema}.process
WHERE (%(process_id)s::uuid IS NULL OR process_id = %(process_id)s)
    AND (%(domain)s::text IS NULL OR domain = %(domain)s)
    AND (%(type)s::text IS NULL OR type = %(type)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(batch_id)s::uuid IS NULL OR batch_id = %(batch_id)s)
    AND (NOT %(unfinished)s::boolean OR finished_at IS NULL)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
    AND (%(after)s::timestamptz IS NULL OR created_at <= %(after)s
         AND (created_at, process_id) < (%(after)s, %(after_id)s::uuid))
ORDER BY created_at DESC, process_id DESC
LIMIT %(limit)s;

-- name: page_processes_for_monitors
-- The same without errors, which monitors cannot read.
SELECT process_id, domain, type, status, step, NULL AS state, NULL AS error, batch_id, created_at,
    updated_at, finished_at
FROM {schema}.process
WHERE (%(process_id)s::uuid IS NULL OR process_id = %(process_id)s)
    AND (%(domain)s::text IS NULL OR domain = %(domain)s)
    AND (%(type)s::text IS NULL OR type = %(type)s)
    AND (%(status)s::text IS NULL OR status = %(status)s)
    AND (%(batch_id)s::uuid IS NULL OR batch_id = %(batch_id)s)
    AND (NOT %(unfinished)s::boolean OR finished_at IS NULL)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
    AND (%(after)s::timestamptz IS NULL OR created_at <= %(after)s
         AND (created_at, process_id) < (%(after)s, %(after_id)s::uuid))
ORDER BY created_at DESC, process_id DESC
LIMIT %(limit)s;

-- name: read_process_steps
-- The latest ones. While a step is awaited its error is that of its command.
SELECT s.number, s.step, s.undoes, s.domain, s.type, s.command_id, s.sent_at, s.received_at,
    s.deadline_at, s.outcome,
    coalesce(s.error, CASE WHEN s.outcome IS NULL THEN c.error_code || ': ' || c.error_message END),
    s.undone, coalesce(c.status, b.status), c.attempts
FROM (
    SELECT * FROM {schema}.process_step
    WHERE process_id = %(process_id)s
    ORDER BY number DESC
    LIMIT %(latest)s::bigint
) s
LEFT JOIN LATERAL (
    SELECT c.status, c.attempts, c.error_code, c.error_message FROM {schema}.command c
    WHERE c.domain = s.domain AND c.command_id = s.command_id
    LIMIT 1) c ON true
LEFT JOIN {schema}.batch_state b ON b.batch_id = s.command_id
ORDER BY s.number;

-- name: read_process_audit
-- The latest events.
SELECT at, kind, NULL::integer AS attempt, NULL AS worker, operator, code, message, details::text
FROM (SELECT * FROM (
    SELECT created_at AS at, 0 AS rank, 0::bigint AS id, 'STARTED' AS kind, NULL AS operator,
        NULL AS code, NULL AS message, json_build_object('type', type, 'domain', domain) AS details
    FROM {schema}.managed_process WHERE process_id = %(process_id)s
    UNION ALL
    SELECT sent_at, 1, number, CASE WHEN undoes IS NULL THEN 'SENT' ELSE 'COMPENSATION_SENT' END,
        NULL, NULL, step,
        json_build_object('number', number, 'domain', domain, 'type', type,
                          'command_id', command_id)
    FROM {schema}.process_step WHERE process_id = %(process_id)s
    UNION ALL
    SELECT received_at, 1, number,
        CASE WHEN undoes IS NULL THEN 'RECEIVED' ELSE 'COMPENSATION_RECEIVED' END, NULL, outcome,
        concat_ws(': ', step, error),
        json_build_object('number', number, 'command_id', command_id, 'seconds',
                          extract(epoch FROM received_at - sent_at)::double precision)
    FROM {schema}.process_step
    WHERE process_id = %(process_id)s AND received_at IS NOT NULL
    UNION ALL
    SELECT at, 2, id, kind, operator, NULL, message, details
    FROM {schema}.process_event WHERE process_id = %(process_id)s
    UNION ALL
    SELECT finished_at, 3, 0, status, NULL, NULL, error, NULL
    FROM {schema}.managed_process
    WHERE process_id = %(process_id)s AND finished_at IS NOT NULL
) events
ORDER BY at DESC, rank DESC, id DESC
LIMIT %(latest)s::bigint) audit
ORDER BY at, rank, id;

-- name: count_processes
-- Those that are not over, by type and status.
SELECT p.type, p.status, count(*)
FROM {schema}.process p
WHERE p.finished_at IS NULL
GROUP BY p.type, p.status
ORDER BY count(*) DESC LIMIT 1000;

-- name: read_awaited
-- A command that may have ended; its result is decoded, as the bus has written it.
SELECT type, status, result, error_code, error_message
FROM {schema}.command
WHERE domain = %(domain)s AND command_id = %(command_id)s;

-- name: read_awaited_batch
-- Its counters, and the first of its commands that were not completed.
SELECT b.status, b.total, b.completed, b.failed, b.canceled, coalesce((
    SELECT json_agg(json_build_object(
        'domain', f.domain, 'command_id', f.command_id, 'type', f.type, 'status', f.status,
        'code', f.error_code, 'message', f.error_message) ORDER BY f.created_at, f.command_id)
    FROM (
        SELECT h.* FROM unnest(ARRAY['FAILED', 'CANCELED']) q (status), LATERAL (
            SELECT x.domain, x.command_id, x.type, x.status, x.error_code, x.error_message,
                x.created_at
            FROM {schema}.finished x
            WHERE x.batch_id = b.batch_id AND x.status = q.status
            ORDER BY x.batch_id, x.status, x.created_at
            LIMIT %(count)s::bigint) h
        ORDER BY h.created_at, h.command_id
        LIMIT %(count)s::bigint) f), '[]')
FROM {schema}.batch b
WHERE b.batch_id = %(batch_id)s;

-- name: read_now
SELECT clock_timestamp();
