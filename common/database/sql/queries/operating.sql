-- What changes commands and domains by an operator's order.

-- name: cancel
SELECT {schema}.cancel(%(domain)s, %(command_id)s, %(reason)s, %(running)s, %(operator)s,
                       %(again)s);

-- name: cancel_scheduled
SELECT canceled, before, command_id
FROM {schema}.cancel_scheduled(%(domain)s, %(type)s, %(since)s, %(until)s, %(command_id)s,
                               %(count)s, %(bytes)s::bigint, %(operator)s, %(reason)s);

-- name: cancel_ready
SELECT canceled, priority, id
FROM {schema}.cancel_ready(%(domain)s, %(type)s, %(since)s, %(until)s, %(priority)s::smallint,
                           %(id)s::bigint, %(count)s, %(bytes)s::bigint, %(operator)s, %(reason)s);

-- name: count_waiting
-- Counts what cancel_ready and cancel_scheduled would take now.
SELECT (
    SELECT count(*) FROM {schema}.ready
    WHERE domain = %(domain)s
        AND (%(type)s::text IS NULL OR type = %(type)s)
        AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
        AND (lease_until IS NULL OR {schema}.is_waiting(claimer, lease_until))
) + (
    SELECT count(*) FROM {schema}.scheduled
    WHERE domain = %(domain)s
        AND (%(type)s::text IS NULL OR type = %(type)s)
        AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
);

-- name: reschedule
SELECT {schema}.reschedule(%(domain)s, %(command_id)s, %(delay)s::double precision, %(run_at)s,
                           %(priority)s::smallint, %(operator)s, %(reason)s, %(again)s);

-- name: resolve
SELECT {schema}.resolve(%(action)s, %(domain)s, %(command_id)s, %(operator)s, %(reason)s,
                        %(result)s::text::json, %(again)s);

-- name: resolve_batch
SELECT resolved, last, before
FROM {schema}.resolve_batch(%(action)s, %(domain)s, %(type)s, %(error_code)s, %(since)s, %(until)s,
                            %(count)s, %(bytes)s, %(operator)s, %(reason)s, %(result)s::text::json);

-- name: purge
-- Removes what waits in a domain, with every trace, up to a count of commands of each table; for
-- tests. Skips locked rows.
WITH waiting AS MATERIALIZED (
    SELECT priority, id FROM {schema}.ready
    WHERE domain = %(domain)s
        AND (lease_until IS NULL OR {schema}.lease_is_over(claimer, lease_until))
    LIMIT %(count)s
    FOR UPDATE SKIP LOCKED
), from_ready AS (
    DELETE FROM {schema}.ready r USING waiting w
    WHERE r.domain = %(domain)s AND r.priority = w.priority AND r.id = w.id
    RETURNING r.command_id
), later AS MATERIALIZED (
    SELECT due_at, id FROM {schema}.scheduled WHERE domain = %(domain)s
    LIMIT %(count)s
    FOR UPDATE SKIP LOCKED
), from_scheduled AS (
    DELETE FROM {schema}.scheduled s USING later l
    WHERE s.due_at = l.due_at AND s.id = l.id
    RETURNING s.command_id
), gone AS (
    SELECT command_id FROM from_ready UNION ALL SELECT command_id FROM from_scheduled
), identities AS (
    DELETE FROM {schema}.identity i USING gone g
    WHERE i.domain = %(domain)s AND i.command_id = g.command_id
), events AS (
    DELETE FROM {schema}.event e USING gone g
    WHERE e.domain = %(domain)s AND e.command_id = g.command_id
)
SELECT count(*) FROM gone;

-- name: configure_domain
SELECT {schema}.configure_domain(%(domain)s, %(given)s, %(accepting)s, %(max_depth)s,
    %(warn_depth)s, %(keep)s, %(operator)s, %(reason)s);

-- name: set_paused
SELECT {schema}.set_paused(%(domain)s, %(paused)s, %(operator)s, %(reason)s);
