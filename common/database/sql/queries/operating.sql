-- Operators' statements; see also 08_operating.sql and its neighbours.

-- name: count_waiting
-- Counts what a cancel of all with the same conditions would take now.
SELECT count(*)
FROM (
    SELECT domain, type, key, created_at, claimer, lease_until FROM {schema}.ready
    UNION ALL
    SELECT domain, type, key, created_at, claimer, lease_until FROM {schema}.scheduled
    UNION ALL
    SELECT domain, type, key, created_at, claimer, lease_until FROM {schema}.limited
) c
WHERE domain = %(domain)s
    AND (%(type)s::text IS NULL OR type = %(type)s)
    AND (%(key)s::text IS NULL OR key = %(key)s)
    AND (%(since)s::timestamptz IS NULL OR created_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR created_at < %(until)s)
    AND (lease_until IS NULL OR {schema}.is_waiting(claimer, lease_until));

-- name: limit_to_now
-- The time before which commands are canceled or resolved: the server's at most, read by itself, so
-- that a call that is repeated takes no later ones.
SELECT least(%(until)s::timestamptz, clock_timestamp());

-- name: purge
-- Removes waiting commands of a domain with every trace, up to a count from each table; for tests.
-- Skips locked rows.
WITH from_ready AS (
    DELETE FROM {schema}.ready WHERE ctid = ANY (ARRAY(
        SELECT r.ctid FROM {schema}.ready r
        WHERE r.domain = %(domain)s
            AND {schema}.is_claimable(r.claimer, r.lease_until)
        LIMIT %(count)s
        FOR UPDATE SKIP LOCKED))
    RETURNING command_id, batch_id, unique_key, domain, type, key, priority, lane_position
), from_scheduled AS (
    DELETE FROM {schema}.scheduled WHERE ctid = ANY (ARRAY(
        SELECT s.ctid FROM {schema}.scheduled s WHERE s.domain = %(domain)s
        LIMIT %(count)s
        FOR UPDATE SKIP LOCKED))
    RETURNING command_id, batch_id, unique_key, domain, type, key, priority, lane_position
), from_limited AS (
    DELETE FROM {schema}.limited WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM {schema}.limited l WHERE l.domain = %(domain)s
        LIMIT %(count)s
        FOR UPDATE SKIP LOCKED))
    RETURNING command_id, batch_id, unique_key, domain, type, key, priority, lane_position
), gone AS (
    TABLE from_ready UNION ALL TABLE from_scheduled UNION ALL TABLE from_limited
), identities AS (
    DELETE FROM {schema}.identity i USING gone g
    WHERE i.domain = %(domain)s AND i.command_id = g.command_id
), events AS (
    DELETE FROM {schema}.event e USING gone g
    WHERE e.domain = %(domain)s AND e.command_id = g.command_id
), unique_keys AS (
    DELETE FROM {schema}.unique_command u USING gone g
    WHERE u.domain = %(domain)s AND u.unique_key = g.unique_key AND u.command_id = g.command_id
), turns AS (
    SELECT {schema}.leave_turns(
        array_agg(ROW(domain, type, key, priority)::{schema}.lane_key)) AS left
    FROM gone WHERE lane_position IS NOT NULL
), tallies AS (
    INSERT INTO {schema}.tally (batch_id, total)
    SELECT batch_id, -count(*) FROM gone WHERE batch_id IS NOT NULL GROUP BY batch_id
)
SELECT count(*), (SELECT count(t.left) FROM turns t) FROM gone;
