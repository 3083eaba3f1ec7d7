-- How commands end that have not begun by their expires_at.
--
-- One that has begun does not expire: its claimed_at is set, and is NULL again only if its first
-- claims were released before its execution began (see release). The indexes for this hold few
-- others: that of ready cannot depend on claimed_at, because claims would not be HOT then.

-- Seconds until the first command expires, not positive while another session has locked one that
-- has; and until the first that has not expired yet. NULL: none. Commands that run may be among the
-- latter, if many do.
CREATE FUNCTION {schema}.next_expiry(OUT due double precision, OUT next double precision)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    present timestamptz := clock_timestamp();
    first_time timestamptz;
    next_time timestamptz;
BEGIN
    SELECT least(
        (SELECT s.expires_at FROM {schema}.scheduled s
         WHERE s.expires_at IS NOT NULL AND s.claimed_at IS NULL
         ORDER BY s.expires_at LIMIT 1),
        (SELECT l.expires_at FROM {schema}.limited l
         WHERE l.expires_at IS NOT NULL AND l.claimed_at IS NULL
         ORDER BY l.expires_at LIMIT 1),
        (SELECT r.expires_at FROM {schema}.ready r
         WHERE r.expires_at <= present AND r.attempts = 0 AND r.losses = 0 AND r.claimed_at IS NULL
         ORDER BY r.expires_at LIMIT 1)),
        (SELECT coalesce(min(c.expires_at) FILTER (WHERE c.claimed_at IS NULL), max(c.expires_at))
         FROM (SELECT r.expires_at, r.claimed_at FROM {schema}.ready r
               WHERE r.expires_at > present AND r.attempts = 0 AND r.losses = 0
               ORDER BY r.expires_at LIMIT 100) c)
    INTO first_time, next_time;
    IF first_time <= present THEN
        SELECT least(next_time,
            (SELECT s.expires_at FROM {schema}.scheduled s
             WHERE s.expires_at > present AND s.claimed_at IS NULL
             ORDER BY s.expires_at LIMIT 1),
            (SELECT l.expires_at FROM {schema}.limited l
             WHERE l.expires_at > present AND l.claimed_at IS NULL
             ORDER BY l.expires_at LIMIT 1))
        INTO next_time;
    ELSE
        next_time := least(next_time, first_time);
        first_time := next_time;
    END IF;
    due := extract(epoch FROM first_time - clock_timestamp());
    next := extract(epoch FROM next_time - clock_timestamp());
END
$$;

-- Ends up to p_count commands that have expired, of p_bytes as stored or just one, as CANCELED;
-- called by stewards. Skips locked rows.
CREATE FUNCTION {schema}.expire(p_count integer, p_bytes bigint, p_skipped bigint[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    in_ready tid[];
    in_scheduled tid[];
    in_limited tid[];
    taken {schema}.ready[];
BEGIN
    SELECT array_agg(e.found_at) FILTER (WHERE e.source = 'ready'),
        array_agg(e.found_at) FILTER (WHERE e.source = 'scheduled'),
        array_agg(e.found_at) FILTER (WHERE e.source = 'limited')
    INTO in_ready, in_scheduled, in_limited
    FROM {schema}.find_expired(p_count, p_skipped) e
    WHERE e.bytes <= p_bytes OR e.place = 1;
    WITH from_ready AS (
        DELETE FROM {schema}.ready r WHERE r.ctid = ANY (in_ready) RETURNING r AS taken
    ), from_scheduled AS (
        DELETE FROM {schema}.scheduled s WHERE s.ctid = ANY (in_scheduled)
        RETURNING ROW(s.*)::{schema}.ready
    ), from_limited AS (
        DELETE FROM {schema}.limited l WHERE l.ctid = ANY (in_limited)
        RETURNING ROW(l.*)::{schema}.ready
    )
    SELECT array_agg(g.taken) INTO taken
    FROM (TABLE from_ready UNION ALL TABLE from_scheduled UNION ALL TABLE from_limited) g;
    PERFORM {schema}.leave_turns(ARRAY(
        SELECT ROW(t.domain, t.type, t.key, t.priority)::{schema}.lane_key
        FROM unnest(taken) t WHERE t.lane_position IS NOT NULL));
    RETURN {schema}.end_canceled(
        coalesce(taken, '{}'), 'EXPIRED', 'it expired before a worker started it', NULL, NULL);
END
$$;

-- Locks up to p_count commands that have expired, skips locked ones, and returns their tables and
-- keys in the order of their times, with a running sum of bytes; called by expire. In limited the
-- id is the lane_position.
CREATE FUNCTION {schema}.find_expired(p_count integer, p_skipped bigint[])
RETURNS TABLE (
    source text, found_at tid, domain text, priority smallint, id bigint, token bigint,
    command_id uuid, claimer bigint, place bigint, bytes bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    -- As in find_due.
    present timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH in_ready AS MATERIALIZED (
        SELECT r.ctid AS found_at, r.domain, r.priority, r.id, r.token, r.command_id, r.claimer,
            r.expires_at, pg_column_size(r.data) AS size
        FROM {schema}.ready r
        WHERE r.expires_at <= present AND r.attempts = 0 AND r.losses = 0
            AND r.claimed_at IS NULL AND r.id <> ALL (p_skipped)
        ORDER BY r.expires_at LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), in_scheduled AS MATERIALIZED (
        SELECT s.ctid, s.domain, s.priority, s.id, s.token, s.command_id, s.claimer,
            s.expires_at, pg_column_size(s.data)
        FROM {schema}.scheduled s
        WHERE s.expires_at <= present AND s.claimed_at IS NULL AND s.id <> ALL (p_skipped)
        ORDER BY s.expires_at LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), in_limited AS MATERIALIZED (
        SELECT l.ctid, l.domain, l.priority, l.lane_position, l.token, l.command_id, l.claimer,
            l.expires_at, pg_column_size(l.data)
        FROM {schema}.limited l
        WHERE l.expires_at <= present AND l.claimed_at IS NULL
            AND l.lane_position <> ALL (p_skipped)
        ORDER BY l.expires_at LIMIT p_count
        FOR UPDATE SKIP LOCKED
    ), found AS (
        SELECT 'ready' AS source, r.* FROM in_ready r
        UNION ALL SELECT 'scheduled', s.* FROM in_scheduled s
        UNION ALL SELECT 'limited', l.* FROM in_limited l
    )
    SELECT f.source, f.found_at, f.domain::text, f.priority::smallint, f.id, f.token, f.command_id,
        f.claimer, row_number() OVER times, sum(f.size) OVER times
    FROM found f
    WINDOW times AS (ORDER BY f.expires_at, f.source, f.id)
    LIMIT p_count;
END
$$;
