-- The lanes of a claim: which it locks, how many commands each lets start, and what each waits for
-- afterwards. Called by claim_in_lanes.

-- Whether the commands that a lane can start next include one of these priorities: in an ordered
-- lane it is the first. Called for claims of some priorities.
CREATE FUNCTION {schema}.lane_offers(
    p_domain text, p_type text, p_key text, p_lowest smallint, p_highest smallint
) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    first record;
    is_ordered boolean := EXISTS (
        SELECT FROM {schema}.limits_of(p_domain, p_type) m
        JOIN {schema}.limit_in_force f ON f.name = m.own AND f.ordered);
BEGIN
    SELECT w.priority INTO first
    FROM generate_series(CASE WHEN is_ordered THEN 0 ELSE p_lowest END,
                         CASE WHEN is_ordered THEN 10 ELSE p_highest END) p (priority), LATERAL (
        SELECT w.priority, w.lane_position FROM {schema}.limited w
        WHERE w.domain = p_domain AND w.type = p_type
            AND coalesce(w.key, '') = p_key AND w.priority = p.priority
            AND {schema}.has_not_expired(w.expires_at, w.claimed_at, clock_timestamp())
        ORDER BY w.domain, w.type, coalesce(w.key, ''), w.priority, w.lane_position
        LIMIT 1) w
    ORDER BY w.lane_position LIMIT 1;
    RETURN coalesce(first.priority BETWEEN p_lowest AND p_highest, false);
END
$$;

-- Makes those of these lanes that have no row; false if it has made none. Never waits for another
-- claim that makes the same lanes, and whose client may have frozen.
CREATE FUNCTION {schema}.make_lanes(p_lanes {schema}.lane_key[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    WITH new AS MATERIALIZED (
        SELECT m.domain, m.type, m.key,
            hashtext(m.domain || ' ' || m.type || ' ' || m.key) & 63 AS bucket
        FROM unnest(p_lanes) m
        WHERE NOT EXISTS (SELECT FROM {schema}.lane l
                          WHERE l.domain = m.domain AND l.type = m.type AND l.key = m.key)
    ), buckets AS MATERIALIZED (
        SELECT n.bucket FROM (SELECT DISTINCT bucket FROM new) n
        WHERE pg_try_advisory_xact_lock('{schema}.lane'::regclass::oid::integer, n.bucket)
    )
    INSERT INTO {schema}.lane (domain, type, key)
    SELECT n.domain, n.type, n.key FROM new n JOIN buckets b ON b.bucket = n.bucket
    ON CONFLICT DO NOTHING;
    RETURN FOUND;
END
$$;

-- Locks lanes of these types that have a turn or whose rate lets them start again, and removes
-- these turns. Skips turns and lanes that another claim has locked: it has an equal right to them,
-- and those of the lanes stay. A claim of some priorities takes their turns, and of the first 100
-- others those whose lanes offer it a command: a turn has the priority of one of its lane's
-- commands, not of all.
CREATE FUNCTION {schema}.lock_lanes(
    p_domains text[], p_types text[], p_most integer, p_lowest smallint, p_highest smallint
) RETURNS {schema}.locked_lane[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    lanes {schema}.locked_lane[];
    missing {schema}.lane_key[];
    has_made_lanes boolean;
    -- No call in the statement, which would read all lanes that wait for their rate.
    present timestamptz := clock_timestamp();
BEGIN
    FOR pass IN 1..2 LOOP
        WITH picked AS MATERIALIZED (
            SELECT t.* FROM (
                SELECT q.domain, q.type FROM unnest(p_domains, p_types) q (domain, type)
                WHERE NOT EXISTS (
                    SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)
            ) q, LATERAL (
                SELECT v.* FROM (
                    SELECT u.ctid AS place, u.domain, u.type, u.key, u.id
                    FROM {schema}.turn u
                    WHERE u.domain = q.domain AND u.type = q.type
                        AND u.priority BETWEEN p_lowest AND p_highest
                    ORDER BY u.domain, u.type, u.priority, u.id
                    LIMIT p_most
                    FOR UPDATE SKIP LOCKED) v
                UNION ALL
                SELECT v.* FROM (
                    SELECT u.ctid AS place, u.domain, u.type, u.key, u.id
                    FROM {schema}.turn u
                    WHERE u.ctid = ANY (ARRAY(
                            SELECT o.ctid FROM {schema}.turn o
                            WHERE (p_lowest > 0 OR p_highest < 10)
                                AND o.domain = q.domain AND o.type = q.type
                                AND o.priority NOT BETWEEN p_lowest AND p_highest
                            ORDER BY o.domain, o.type, o.priority, o.id
                            LIMIT 100))
                        AND {schema}.lane_offers(u.domain, u.type, u.key, p_lowest, p_highest)
                    LIMIT p_most
                    FOR UPDATE SKIP LOCKED) v
                UNION ALL
                (SELECT NULL, l.domain, l.type, l.key, 0
                 FROM {schema}.lane l
                 WHERE l.domain = q.domain AND l.type = q.type AND l.opens_at <= present
                 ORDER BY l.domain, l.type, l.opens_at
                 LIMIT p_most)) t
        ), locked AS MATERIALIZED (
            SELECT p.*, l.next_start, l.waited
            FROM picked p LEFT JOIN LATERAL (
                SELECT l.next_start, l.opens_at IS NOT NULL OR l.waits_for IS NOT NULL AS waited
                FROM {schema}.lane l
                WHERE l.domain = p.domain AND l.type = p.type AND l.key = p.key
                FOR UPDATE SKIP LOCKED) l ON true
        ), used AS (
            DELETE FROM {schema}.turn t USING locked k
            WHERE t.ctid = k.place AND k.next_start IS NOT NULL
        ), each AS MATERIALIZED (
            SELECT k.domain, k.type, k.key, min(k.id) AS turn, k.next_start, k.waited
            FROM locked k GROUP BY k.domain, k.type, k.key, k.next_start, k.waited
        )
        SELECT array_agg(ROW(e.domain, e.type, e.key, e.turn, e.next_start, e.waited, NULL, NULL,
                             NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                             NULL)::{schema}.locked_lane)
                FILTER (WHERE e.next_start IS NOT NULL),
            array_agg(ROW(e.domain, e.type, e.key, NULL)::{schema}.lane_key)
                FILTER (WHERE e.next_start IS NULL)
        INTO lanes, missing
        FROM each e;
        EXIT WHEN missing IS NULL;
        has_made_lanes := {schema}.make_lanes(missing);
        EXIT WHEN NOT has_made_lanes OR lanes IS NOT NULL;
    END LOOP;
    RETURN lanes;
END
$$;

-- Adds to locked lanes their limits and their room: how many of their commands can start now. A
-- statement of its own after the locks: its snapshot shows what others have admitted.
CREATE FUNCTION {schema}.measure_lanes(p_lanes {schema}.locked_lane[], p_now timestamptz)
RETURNS {schema}.locked_lane[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN ARRAY(
        SELECT ROW(l.domain, l.type, l.key, l.turn, l.next_start, l.waited, f.concurrency,
                   f.starts_per_second, f.burst, f.ordered, f.on_trouble = 'block',
                   coalesce(m.shared, '{}'), c.running,
                   CASE WHEN f.ordered AND (c.running > 0 OR h.held) THEN 0
                        WHEN f.ordered THEN least(1, c.rate_room)
                        ELSE greatest(0, least(coalesce(f.concurrency - c.running, 2147483647),
                                               c.rate_room)) END,
                   c.rate_room, CASE WHEN f.ordered THEN first.priority ELSE 0 END,
                   first.lane_position
            )::{schema}.locked_lane
        FROM (SELECT u.domain, u.type, array_agg(u) AS lanes FROM unnest(p_lanes) u GROUP BY 1, 2) g
        LEFT JOIN LATERAL {schema}.limits_of(g.domain, g.type) m ON true
        LEFT JOIN {schema}.limit_in_force f ON f.name = m.own
        CROSS JOIN unnest(g.lanes) l
        CROSS JOIN LATERAL (
            SELECT (SELECT count(*)::integer FROM (
                        SELECT FROM {schema}.ready r
                        WHERE r.domain = l.domain AND r.type = l.type
                            AND coalesce(r.key, '') = l.key AND r.lane_position IS NOT NULL
                        LIMIT coalesce(f.concurrency, 1000)) places) AS running,
                {schema}.starts_allowed(l.next_start, f.starts_per_second, f.burst, p_now)
                    AS rate_room
        ) c
        CROSS JOIN LATERAL (
            -- An ordered lane is held by a command that waits for its retry or for an operator.
            SELECT f.ordered AND (
                EXISTS (SELECT FROM {schema}.scheduled s
                        WHERE s.domain = l.domain AND s.type = l.type
                            AND coalesce(s.key, '') = l.key AND s.lane_position IS NOT NULL)
                OR f.on_trouble = 'block' AND EXISTS (
                    SELECT FROM {schema}.troubleshooting t
                    WHERE t.domain = l.domain AND t.type = l.type
                        AND coalesce(t.key, '') = l.key AND t.lane_position IS NOT NULL)) AS held
        ) h
        -- The first command of an ordered lane, in the order of sending.
        LEFT JOIN LATERAL (
            SELECT w.priority, w.lane_position
            FROM generate_series(0, CASE WHEN f.ordered THEN 10 ELSE -1 END) p (priority), LATERAL (
                SELECT w.priority, w.lane_position FROM {schema}.limited w
                WHERE w.domain = l.domain AND w.type = l.type
                    AND coalesce(w.key, '') = l.key AND w.priority = p.priority
                    AND {schema}.has_not_expired(w.expires_at, w.claimed_at, p_now)
                ORDER BY w.domain, w.type, coalesce(w.key, ''), w.priority, w.lane_position
                LIMIT 1) w
            ORDER BY w.lane_position LIMIT 1) first ON true);
END
$$;

-- The turn of a lane after a claim that had it at p_turn, or 0, and took p_count of its commands:
-- a lane that has got a start waits behind the others.
CREATE FUNCTION {schema}.turn_after(p_turn bigint, p_count integer) RETURNS bigint
LANGUAGE sql VOLATILE
RETURN CASE WHEN p_turn > 0 AND p_count = 0 THEN p_turn
    ELSE nextval('{schema}.turn_id_seq') END;

-- Notes what locked lanes wait for after a claim has taken commands of them: nothing, their rate, a
-- shared limit, or another claim, to which it leaves a turn. A lane that is full gets one when a
-- place is free. One whose next rows are locked, as if they were being canceled, is looked at again
-- a second later. One whose next commands are not of the claim's priorities has a turn of theirs.
CREATE FUNCTION {schema}.leave_lanes(
    p_lanes {schema}.locked_lane[], p_counts integer[], p_blockers text[], p_fetched integer,
    p_is_full boolean, p_now timestamptz, p_lowest smallint, p_highest smallint
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    opening timestamptz;
BEGIN
    WITH after AS MATERIALIZED (
        SELECT l.*, w.priority,
            {schema}.start_after(l.next_start, l.per_second, l.burst, p_now, l.count) AS start_then
        FROM (
            SELECT l.*, p_counts[l.place] AS count, p_blockers[l.place] AS blocker
            FROM unnest(p_lanes) WITH ORDINALITY l (
                domain, type, key, turn, next_start, waited, concurrency, per_second, burst,
                ordered, blocks, shared, running, room, rate_room, first_priority,
                first_position, place)
        ) l LEFT JOIN LATERAL (
            SELECT w.priority FROM {schema}.limited w
            WHERE w.domain = l.domain AND w.type = l.type AND coalesce(w.key, '') = l.key
                -- Not for one that is full, which waits for nothing else.
                AND (l.count < l.room OR l.count >= l.rate_room OR l.blocker IS NOT NULL)
            ORDER BY w.domain, w.type, coalesce(w.key, ''), w.priority, w.lane_position
            LIMIT 1) w ON true
    ), judged AS MATERIALIZED (
        SELECT a.*, CASE WHEN a.ordered AND (p_lowest > 0 OR p_highest < 10)
                THEN coalesce(a.first_priority, a.priority) ELSE a.priority END AS turn_priority,
            -- Only for lanes in which something waits.
            CASE WHEN a.priority IS NULL THEN 'nothing'
                 WHEN a.blocker IS NOT NULL THEN 'shared'
                 WHEN a.count >= a.rate_room THEN 'rate'
                 WHEN a.count >= a.room THEN 'place'
                 WHEN p_is_full OR a.count >= p_fetched THEN 'turn'
                 WHEN (p_lowest > 0 OR p_highest < 10) AND NOT {schema}.lane_offers(
                     a.domain, a.type, a.key, p_lowest, p_highest) THEN 'turn'
                 ELSE 'row' END AS waits
        FROM after a
    ), turns AS (
        INSERT INTO {schema}.turn (id, domain, type, key, priority) OVERRIDING SYSTEM VALUE
        SELECT {schema}.turn_after(turn, count), domain, type, key, turn_priority
        FROM judged WHERE waits = 'turn'
    ), changed AS (
        UPDATE {schema}.lane l SET
            next_start = CASE WHEN j.count > 0 OR j.waits = 'rate' THEN j.start_then
                              ELSE l.next_start END,
            opens_at = CASE j.waits
                WHEN 'rate' THEN {schema}.opening_time(j.start_then, j.per_second, j.burst)
                WHEN 'row' THEN p_now + interval '1 second' END,
            waits_for = CASE j.waits WHEN 'shared' THEN j.blocker END,
            waits_since = CASE j.waits WHEN 'shared' THEN {schema}.turn_after(j.turn, j.count) END,
            waits_priority = CASE j.waits WHEN 'shared' THEN j.priority END
        FROM judged j
        WHERE l.domain = j.domain AND l.type = j.type AND l.key = j.key
            AND (j.waited OR j.waits IN ('rate', 'row', 'shared')
                 OR (j.count > 0 AND j.per_second IS NOT NULL))
        RETURNING l.opens_at, j.waited
    )
    -- Nodes that have seen a lane wait look at its time, and see the next one.
    SELECT min(c.opens_at) FILTER (WHERE NOT c.waited) INTO opening FROM changed c;
    PERFORM {schema}.wake_at(opening);
END
$$;
