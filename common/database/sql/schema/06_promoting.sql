-- How scheduled commands become ready once they are due.

-- Moves up to p_count due commands, of p_bytes as stored or just one, from scheduled to ready;
-- called by stewards. Each gets a new id, so that no claim's floor is above it. Skips locked
-- rows.
CREATE FUNCTION {schema}.promote(p_count integer, p_bytes bigint, p_skipped bigint[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    promoted bigint;
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.scheduled s
        USING {schema}.find_due(p_count, p_skipped) d
        WHERE s.due_at = d.due_at AND s.id = d.id AND (d.bytes <= p_bytes OR d.place = 1)
        RETURNING s.*
    )
    INSERT INTO {schema}.ready (
        token, claimed_at, created_at, due_at, command_id, correlation_id, priority, attempts,
        losses, max_attempts, domain, type, reply_to, headers, data, error_code, error_message,
        batch_id, caller, key, unique_key, lane_position, expires_at)
    SELECT token, claimed_at, created_at, due_at, command_id, correlation_id, priority, attempts,
        losses, max_attempts, domain, type, reply_to, headers, data, error_code, error_message,
        batch_id, caller, key, unique_key, lane_position, expires_at
    FROM gone ORDER BY due_at, id;
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END
$$;

-- Locks up to p_count due commands, skips locked ones, and returns their keys with a running
-- sum of bytes; called by promote. If more are due than that, domains take turns by the index
-- scheduled_turn, and within a domain the most urgent priority comes first.
CREATE FUNCTION {schema}.find_due(p_count integer, p_skipped bigint[])
RETURNS TABLE (due_at timestamptz, id bigint, place bigint, bytes bigint)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    -- A variable: no index is searched for the value of a VOLATILE function.
    present timestamptz := clock_timestamp();
BEGIN
    PERFORM FROM {schema}.scheduled s
    WHERE s.due_at <= present AND s.id <> ALL (p_skipped)
    ORDER BY s.due_at, s.id
    OFFSET p_count LIMIT 1;
    IF NOT FOUND THEN
        RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT s.due_at, s.id, pg_column_size(s.data) AS bytes FROM {schema}.scheduled s
            WHERE s.due_at <= present AND s.id <> ALL (p_skipped)
            ORDER BY s.due_at, s.id
            LIMIT p_count
            FOR UPDATE SKIP LOCKED
        )
        SELECT p.due_at::timestamptz, p.id, row_number() OVER (ORDER BY p.due_at, p.id),
            sum(p.bytes) OVER (ORDER BY p.due_at, p.id)
        FROM picked p;
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE queue AS (
        (SELECT s.domain, s.priority, s.due_at FROM {schema}.scheduled s
         ORDER BY s.domain, s.priority, s.due_at, s.id LIMIT 1)
        UNION ALL
        SELECT n.domain, n.priority, n.due_at
        FROM queue q, LATERAL (
            SELECT s.domain, s.priority, s.due_at FROM {schema}.scheduled s
            WHERE (s.domain, s.priority) > (q.domain, q.priority)
            ORDER BY s.domain, s.priority, s.due_at, s.id LIMIT 1) n
    ), domains AS MATERIALIZED (
        SELECT q.domain, array_agg(q.priority ORDER BY q.priority) AS priorities,
            greatest(1, p_count / count(*) OVER ()) AS share
        FROM queue q
        WHERE q.due_at <= present
        GROUP BY q.domain
        ORDER BY min(q.due_at)
    ), picked AS MATERIALIZED (
        SELECT t.domain, t.priority, t.due_at, t.id, t.bytes
        FROM domains d, LATERAL (
            SELECT c.domain, c.priority, c.due_at, c.id, c.bytes
            FROM unnest(d.priorities) q (priority), LATERAL (
                SELECT s.domain, s.priority, s.due_at, s.id, pg_column_size(s.data) AS bytes
                FROM {schema}.scheduled s
                WHERE s.domain = d.domain AND s.priority = q.priority
                    AND s.due_at <= present AND s.id <> ALL (p_skipped)
                ORDER BY s.domain, s.priority, s.due_at, s.id
                LIMIT d.share
                FOR UPDATE SKIP LOCKED
            ) c
            LIMIT d.share
        ) t
        LIMIT p_count
    ), turns AS (
        SELECT p.domain, p.due_at, p.id, p.bytes, row_number() OVER (
            PARTITION BY p.domain ORDER BY p.priority, p.due_at, p.id) AS turn
        FROM picked p
    )
    SELECT t.due_at::timestamptz, t.id, row_number() OVER (ORDER BY t.turn, t.domain),
        sum(t.bytes) OVER (ORDER BY t.turn, t.domain)
    FROM turns t;
END
$$;

-- Makes up to 10,000 of the commands due that a breaker has kept from a call, and returns how many;
-- called when it closes, and by stewards after that. Skips locked ones.
CREATE FUNCTION {schema}.end_deferrals(p_name text) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    present timestamptz := clock_timestamp();
    ctids tid[] := ARRAY(
        SELECT s.ctid FROM {schema}.scheduled s
        WHERE s.error_code = 'BREAKER_OPEN' AND split_part(s.error_message, ' ', 3) = p_name
            AND s.due_at > present
        LIMIT 10000
        FOR UPDATE SKIP LOCKED);
BEGIN
    UPDATE {schema}.scheduled s SET due_at = present WHERE s.ctid = ANY (ctids);
    IF FOUND THEN
        PERFORM {schema}.wake_at(present);
    END IF;
    RETURN cardinality(ctids);
END
$$;
