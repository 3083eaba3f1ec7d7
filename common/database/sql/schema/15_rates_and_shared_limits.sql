-- Rates, and the limits that several types share: how many more commands they let start, and when
-- the next one. See 14_lanes.sql.

-- Rows of ready that hold a place of a shared limit, counted up to p_most. p_node: only those of
-- this node's workers.
CREATE FUNCTION {schema}.count_shared(p_name text, p_most integer, p_node bigint)
RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (
        SELECT count(*)::integer FROM (
            SELECT FROM {schema}.limited_type t, LATERAL (
                SELECT r.claimer FROM {schema}.ready r
                WHERE r.domain = t.domain AND r.lane_position IS NOT NULL
                    AND CASE WHEN t.type <> '' THEN r.type = t.type
                        ELSE NOT EXISTS (SELECT FROM {schema}.limited_type o
                                         WHERE o.domain = r.domain AND o.type = r.type) END) r
            WHERE p_name = ANY (t.shared)
                AND (p_node IS NULL OR EXISTS (
                    SELECT FROM {schema}.incarnation i WHERE i.id = r.claimer AND i.node = p_node))
            LIMIT p_most) places);
END
$$;

-- How many starts a rate allows now, at most its burst. A time beyond that burst is from before the
-- clock was set back.
CREATE FUNCTION {schema}.starts_allowed(
    p_next_start timestamptz, p_per_second double precision, p_burst integer, p_now timestamptz
) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN p_per_second IS NULL THEN 2147483647
    WHEN p_next_start <= p_now THEN p_burst
    ELSE greatest(0, p_burst - ceil(least(p_burst, extract(epoch FROM p_next_start - p_now)
                                          * p_per_second) - 1e-6))::integer END;

-- When the next start is due after p_count more.
CREATE FUNCTION {schema}.start_after(
    p_next_start timestamptz, p_per_second double precision, p_burst integer, p_now timestamptz,
    p_count integer
) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN CASE WHEN p_per_second IS NULL THEN p_next_start
    ELSE least(greatest(p_next_start, p_now),
               p_now + make_interval(secs => p_burst / p_per_second))
        + make_interval(secs => p_count / p_per_second) END;

-- When a rate allows a start again.
CREATE FUNCTION {schema}.opening_time(
    p_next_start timestamptz, p_per_second double precision, p_burst integer
) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN p_next_start - make_interval(secs => (p_burst - 1) / p_per_second);

-- Locks the states of these shared limits, in their order. Waits for claims that have them locked,
-- for as long as those run; false: one of them, whose client may have frozen, runs for longer.
CREATE FUNCTION {schema}.lock_shared(p_names text[], p_node bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    locked text[];
BEGIN
    -- Repeated if a steward has removed one of them in between.
    LOOP
        INSERT INTO {schema}.shared_state (name, node)
        SELECT f.name, CASE WHEN f.per_node THEN p_node ELSE 0 END
        FROM {schema}.limit_in_force f
        WHERE f.name = ANY (p_names) AND NOT EXISTS (
            SELECT FROM {schema}.shared_state s
            WHERE s.name = f.name AND s.node = CASE WHEN f.per_node THEN p_node ELSE 0 END)
        ORDER BY 1 ON CONFLICT DO NOTHING;
        locked := ARRAY(
            SELECT s.name FROM {schema}.shared_state s
            WHERE s.name = ANY (p_names) AND s.node = (
                SELECT CASE WHEN f.per_node THEN p_node ELSE 0 END
                FROM {schema}.limit_in_force f WHERE f.name = s.name)
            ORDER BY s.name, s.node FOR UPDATE);
        EXIT WHEN NOT EXISTS (
            SELECT FROM {schema}.limit_in_force f
            WHERE f.name = ANY (p_names) AND f.name <> ALL (locked));
    END LOOP;
    -- A later time is from before the rate was raised, or the clock set back.
    UPDATE {schema}.shared_state s SET next_start = latest.start
    FROM {schema}.limit_in_force f, LATERAL (
        SELECT clock_timestamp() + make_interval(secs => f.burst / f.starts_per_second) AS start
    ) latest
    WHERE f.name = s.name AND s.name = ANY (p_names)
        AND s.node = CASE WHEN f.per_node THEN p_node ELSE 0 END
        AND s.next_start > latest.start + interval '1 ms';
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- The room of shared limits that this session has locked, at most p_most: how many commands can
-- take a place and start. A statement of its own after the locks, as in measure_lanes.
CREATE FUNCTION {schema}.measure_shared(
    p_names text[], p_node bigint, p_most integer, p_now timestamptz
) RETURNS integer[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN ARRAY(
        SELECT least(
            p_most,
            CASE WHEN f.concurrency IS NOT NULL THEN f.concurrency - {schema}.count_shared(
                f.name, f.concurrency, CASE WHEN f.per_node THEN p_node END) END,
            {schema}.starts_allowed(s.next_start, f.starts_per_second, f.burst, p_now))
        FROM unnest(p_names) WITH ORDINALITY n (name, place)
        LEFT JOIN {schema}.limit_in_force f ON f.name = n.name
        LEFT JOIN {schema}.shared_state s
            ON s.name = f.name AND s.node = CASE WHEN f.per_node THEN p_node ELSE 0 END
        ORDER BY n.place);
END
$$;

-- Counts starts by the rates of shared limits that this session has locked.
CREATE FUNCTION {schema}.count_shared_starts(
    p_names text[], p_counts integer[], p_node bigint, p_now timestamptz
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE {schema}.shared_state s SET
        next_start = {schema}.start_after(
            s.next_start, f.starts_per_second, f.burst, p_now, n.count)
    FROM unnest(p_names, p_counts) n (name, count), {schema}.limit_in_force f
    WHERE f.name = n.name AND f.starts_per_second IS NOT NULL AND n.count > 0
        AND s.name = f.name AND s.node = CASE WHEN f.per_node THEN p_node ELSE 0 END;
END
$$;

-- Gives a turn to as many lanes that wait for a shared limit as it has room for: to those that have
-- waited the longest or, while a lane of a type that is not one of these has not taken such a turn,
-- to lanes of these types. Returns the room that is left to these types. The turn is the one since
-- which a lane waits, so that lanes alternate. Skips lanes that another claim has locked.
CREATE FUNCTION {schema}.let_wait_no_longer(
    p_name text, p_node bigint, p_room integer, p_domains text[], p_types text[]
) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    released {schema}.lane[];
    others {schema}.lane;
    number integer;
BEGIN
    IF EXISTS (
        SELECT FROM {schema}.shared_state s, {schema}.turn t
        WHERE s.name = p_name AND s.node IN (0, p_node)
            AND t.domain = s.offered_domain AND t.type = s.offered_type
            AND t.priority = s.offered_priority AND t.id = s.offered_turn)
    THEN
        released := ARRAY(
            SELECT w.lane FROM unnest(p_domains, p_types) q (domain, type), LATERAL (
                SELECT l AS lane FROM {schema}.lane l
                WHERE l.waits_for = p_name AND l.domain = q.domain AND l.type = q.type
                ORDER BY l.waits_for, l.domain, l.type, l.waits_priority, l.waits_since
                LIMIT p_room
                FOR UPDATE SKIP LOCKED) w);
    ELSE
        released := ARRAY(
            SELECT l FROM {schema}.lane l
            WHERE l.waits_for = p_name AND NOT EXISTS (
                SELECT FROM {schema}.domain d WHERE d.name = l.domain AND d.paused)
            ORDER BY l.waits_for, l.waits_priority, l.waits_since
            LIMIT p_room
            FOR UPDATE OF l SKIP LOCKED);
    END IF;
    IF cardinality(released) = 0 THEN
        RETURN p_room;
    END IF;
    UPDATE {schema}.lane l SET waits_for = NULL, waits_since = NULL, waits_priority = NULL
    FROM unnest(released) w WHERE l.domain = w.domain AND l.type = w.type AND l.key = w.key;
    INSERT INTO {schema}.turn (id, domain, type, key, priority) OVERRIDING SYSTEM VALUE
    SELECT w.waits_since, w.domain, w.type, w.key, w.waits_priority FROM unnest(released) w;
    number := 0;
    FOREACH others IN ARRAY released LOOP
        IF NOT EXISTS (SELECT FROM unnest(p_domains, p_types) q (domain, type)
                       WHERE q.domain = others.domain AND q.type = others.type)
        THEN
            number := number + 1;
            UPDATE {schema}.shared_state s SET
                offered_domain = others.domain, offered_type = others.type,
                offered_priority = others.waits_priority, offered_turn = others.waits_since
            WHERE s.name = p_name AND s.node IN (0, p_node);
        END IF;
    END LOOP;
    RETURN p_room - number;
END
$$;

-- Seconds until a rate lets one of these types start again, after p_after; NULL if none will. Of
-- the shared limits, those count that let nothing start at p_measured: a claim passes the time for
-- which it has measured them, as one that opens between that and now would keep its lanes for good.
CREATE FUNCTION {schema}.next_opening(
    p_domains text[], p_types text[], p_shared text[], p_node bigint, p_after timestamptz,
    p_measured timestamptz
) RETURNS double precision
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN (
        SELECT extract(epoch FROM min(o.opens_at) - clock_timestamp())::double precision FROM (
            SELECT l.opens_at FROM unnest(p_domains, p_types) q (domain, type), LATERAL (
                SELECT l.opens_at FROM {schema}.lane l
                WHERE l.domain = q.domain AND l.type = q.type AND l.opens_at > p_after
                ORDER BY l.domain, l.type, l.opens_at LIMIT 1) l
            WHERE NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)
            UNION ALL
            SELECT {schema}.opening_time(s.next_start, f.starts_per_second, f.burst)
            FROM {schema}.limit_in_force f, {schema}.shared_state s
            WHERE f.name = ANY (p_shared) AND f.starts_per_second IS NOT NULL AND s.name = f.name
                AND s.node = CASE WHEN f.per_node THEN p_node ELSE 0 END
                AND {schema}.starts_allowed(
                    s.next_start, f.starts_per_second, f.burst, p_measured) = 0
                AND EXISTS (SELECT FROM {schema}.lane l WHERE l.waits_for = f.name)
        ) o);
END
$$;
