-- Operators' statements; see also 07_operating.sql.

-- name: count_waiting
-- Counts what cancel_ready and cancel_scheduled would take now.
SELECT count(*)
FROM (
    SELECT domain, type, created_at, claimer, lease_until FROM {schema}.ready
    UNION ALL
    SELECT domain, type, created_at, claimer, lease_until FROM {schema}.scheduled
) c
WHERE domain = %(domain)s
    AND (%(type)s::text IS NULL OR type = %(type)s)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
    AND (lease_until IS NULL OR {schema}.is_waiting(claimer, lease_until));

-- name: purge
-- Removes waiting commands of a domain with every trace, up to a count from each table; for tests.
-- Skips locked rows.
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
