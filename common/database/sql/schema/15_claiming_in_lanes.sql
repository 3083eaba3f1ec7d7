-- Claims of workers in lanes; see 14_lanes.sql.

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

-- Locks the states of these shared limits, in their order, and returns their room: the number of
-- commands that can take a place and start. Waits for claims that have them locked, for as long as
-- those run; NULL: one of them, whose client may have frozen, runs for longer.
CREATE FUNCTION {schema}.lock_shared(p_names text[], p_node bigint, p_most integer)
RETURNS integer[]
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
    -- Another statement: its snapshot shows what was committed before the locks were taken.
    RETURN ARRAY(
        SELECT least(
            p_most,
            CASE WHEN f.concurrency IS NOT NULL THEN f.concurrency - {schema}.count_shared(
                f.name, f.concurrency, CASE WHEN f.per_node THEN p_node END) END,
            {schema}.starts_allowed(s.next_start, f.starts_per_second, f.burst, clock_timestamp()))
        FROM unnest(p_names) WITH ORDINALITY n (name, place)
        LEFT JOIN {schema}.limit_in_force f ON f.name = n.name
        LEFT JOIN {schema}.shared_state s
            ON s.name = f.name AND s.node = CASE WHEN f.per_node THEN p_node ELSE 0 END
        ORDER BY n.place);
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
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
        next_start = {schema}.start_after(s.next_start, f.starts_per_second, f.burst, p_now, n.count)
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

-- Locks lanes of these types that have a turn or whose rate lets them start again, and removes
-- these turns. Skips turns and lanes that another claim has locked: it has an equal right to them,
-- and those of the lanes stay.
CREATE FUNCTION {schema}.lock_lanes(p_domains text[], p_types text[], p_most integer)
RETURNS {schema}.locked_lane[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    lanes {schema}.locked_lane[];
    missing {schema}.lane_key[];
    -- No call in the statement, which would read all lanes that wait for their rate.
    present timestamptz := clock_timestamp();
BEGIN
    FOR pass IN 1..2 LOOP
        WITH picked AS MATERIALIZED (
            SELECT t.* FROM (
                SELECT q.domain, q.type FROM unnest(p_domains, p_types) q (domain, type)
                WHERE NOT EXISTS (
                    SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)) q, LATERAL (
                SELECT v.* FROM (
                    SELECT u.ctid AS place, u.domain, u.type, u.key, u.id
                    FROM {schema}.turn u
                    WHERE u.domain = q.domain AND u.type = q.type
                    ORDER BY u.domain, u.type, u.priority, u.id
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
        -- Never waits for another claim that makes the same lanes, and whose client may have
        -- frozen.
        WITH new AS MATERIALIZED (
            SELECT m.domain, m.type, m.key,
                hashtext(m.domain || ' ' || m.type || ' ' || m.key) & 63 AS bucket
            FROM unnest(missing) m
            WHERE NOT EXISTS (SELECT FROM {schema}.lane l
                              WHERE l.domain = m.domain AND l.type = m.type AND l.key = m.key)
        ), buckets AS MATERIALIZED (
            SELECT n.bucket FROM (SELECT DISTINCT bucket FROM new) n
            WHERE pg_try_advisory_xact_lock('{schema}.lane'::regclass::oid::integer, n.bucket)
        )
        INSERT INTO {schema}.lane (domain, type, key)
        SELECT n.domain, n.type, n.key FROM new n JOIN buckets b ON b.bucket = n.bucket
        ON CONFLICT DO NOTHING;
        EXIT WHEN NOT FOUND OR lanes IS NOT NULL;
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
        SELECT ROW(l.domain, l.type, l.key, l.turn, l.next_start, l.waited, f.concurrency, f.starts_per_second,
                   f.burst, f.ordered, f.on_trouble = 'block', coalesce(m.shared, '{}'),
                   c.running,
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
                {schema}.starts_allowed(l.next_start, f.starts_per_second, f.burst, p_now) AS rate_room
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
        -- Its first command in the order of sending.
        LEFT JOIN LATERAL (
            SELECT w.priority, w.lane_position
            FROM generate_series(0, 10) p (priority), LATERAL (
                SELECT w.priority, w.lane_position FROM {schema}.limited w
                WHERE w.domain = l.domain AND w.type = l.type
                    AND coalesce(w.key, '') = l.key AND w.priority = p.priority
                    AND {schema}.has_not_expired(w.expires_at, w.claimed_at, p_now)
                ORDER BY w.domain, w.type, coalesce(w.key, ''), w.priority, w.lane_position
                LIMIT 1) w
            ORDER BY w.lane_position LIMIT 1) first ON f.ordered);
END
$$;

-- Claims up to p_count commands of lanes of these types, of p_bytes of payload or just one. p_shared
-- are the shared limits of these types, sorted. Commands of a higher priority come first, then those
-- of the lanes with the fewest places taken, then those of the longest turn. Locks lanes until the
-- transaction ends; waits only for the claims of the same shared limits.
--
-- The last row is no claim: its id is -1, and waited the seconds until a rate lets a lane start
-- again, if that is known; 0 or less if another claim has locked something that this one could have
-- taken. Its attempts are 1 if it may have left commands that could start.
CREATE FUNCTION {schema}.claim_in_lanes(
    p_domains text[], p_types text[], p_shared text[], p_count integer, p_bytes bigint,
    p_claimer bigint, p_lease interval, p_node bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    last {schema}.claimed;
    lanes {schema}.locked_lane[];
    present timestamptz;
    -- Of the shared limits: their room, and starts since it was counted.
    rooms integer[] := '{}';
    starts integer[];
    began timestamptz := clock_timestamp();
    -- Something was left to the claims of others, which have locked it or may come first.
    is_left boolean := false;
    domains text[] := p_domains;
    types text[] := p_types;
    -- Rows that can start: where they are, in which lane, their bytes.
    ctids tid[];
    owners integer[];
    sizes bigint[];
    chosen tid[];
    -- For each lane: how many commands are taken of it, and the shared limit that keeps its next.
    counts integer[];
    blockers text[];
    each_fetched integer;
    -- Commands that a lane gives, on average: at first a guess.
    each_gave double precision := 4;
    taken integer := 0;
    bytes bigint := 0;
    is_full boolean := false;
    place integer;
    room integer;
    name text;
BEGIN
    IF p_count = 0 OR cardinality(p_types) = 0 THEN
        RETURN;
    END IF;
    IF cardinality(p_shared) > 0 THEN
        rooms := {schema}.lock_shared(p_shared, p_node, p_count);
        IF rooms IS NULL THEN
            is_left := true;
            rooms := array_fill(0, ARRAY[cardinality(p_shared)]);
            SELECT coalesce(array_agg(q.domain), '{}'), coalesce(array_agg(q.type), '{}')
            INTO domains, types
            FROM unnest(p_domains, p_types) q (domain, type)
            WHERE NOT EXISTS (SELECT FROM {schema}.limits_of(q.domain, q.type) m
                              WHERE m.shared && p_shared);
        END IF;
    END IF;
    starts := array_fill(0, ARRAY[cardinality(p_shared)]);
    LOOP
        FOR i IN 1..cardinality(p_shared) LOOP
            IF rooms[i] > 0 THEN
                room := {schema}.let_wait_no_longer(
                    p_shared[i], p_node, rooms[i], domains, types);
                is_left := is_left OR room < rooms[i];
                rooms[i] := room;
            END IF;
        END LOOP;
        lanes := {schema}.lock_lanes(
            domains, types, ((p_count - taken) / each_gave)::integer + 16);
        EXIT WHEN coalesce(cardinality(lanes), 0) = 0;
        present := clock_timestamp();
        lanes := {schema}.measure_lanes(lanes, present);
        each_fetched := ceil(1.25 * (p_count - taken) / cardinality(lanes));
        SELECT array_agg(o.ctid), array_agg(o.lane), array_agg(o.bytes)
        INTO ctids, owners, sizes
        FROM (
            SELECT q.ctid, q.bytes, l.place::integer AS lane
            FROM unnest(lanes) WITH ORDINALITY l (
                    domain, type, key, turn, next_start, waited, concurrency, per_second, burst,
                    ordered, blocks, shared, running, room, rate_room, first_priority,
                    first_position, place),
                LATERAL (
                    SELECT r.*, row_number() OVER () AS number
                    FROM (
                        SELECT w.ctid, w.priority,
                            CASE WHEN pg_column_compression(w.data) IS NULL
                                 THEN pg_column_size(w.data)
                                 ELSE octet_length(w.data::text) END AS bytes
                        FROM {schema}.limited w
                        WHERE w.domain = l.domain AND w.type = l.type
                            AND coalesce(w.key, '') = l.key AND w.priority >= l.first_priority
                            -- None instead of a first one that another session has locked.
                            AND (l.first_position IS NULL OR w.lane_position = l.first_position)
                            AND {schema}.has_not_expired(w.expires_at, w.claimed_at, present)
                        ORDER BY w.domain, w.type, coalesce(w.key, ''), w.priority, w.lane_position
                        LIMIT least(l.room, each_fetched)
                        FOR UPDATE SKIP LOCKED) r) q
            ORDER BY q.priority, l.running + q.number, l.turn
        ) o;
        chosen := '{}';
        counts := array_fill(0, ARRAY[cardinality(lanes)]);
        blockers := array_fill(NULL::text, ARRAY[cardinality(lanes)]);
        <<rows>>
        FOR i IN 1..coalesce(cardinality(ctids), 0) LOOP
            IF taken >= p_count OR (taken > 0 AND bytes + sizes[i] > p_bytes) THEN
                is_full := true;
                EXIT;
            END IF;
            IF cardinality(lanes[owners[i]].shared) > 0 THEN
                FOREACH name IN ARRAY lanes[owners[i]].shared LOOP
                    place := array_position(p_shared, name);
                    IF place IS NULL OR rooms[place] <= 0 THEN
                        blockers[owners[i]] := coalesce(blockers[owners[i]], name);
                        CONTINUE rows;
                    END IF;
                END LOOP;
                FOREACH name IN ARRAY lanes[owners[i]].shared LOOP
                    place := array_position(p_shared, name);
                    rooms[place] := rooms[place] - 1;
                    starts[place] := starts[place] + 1;
                END LOOP;
            END IF;
            taken := taken + 1;
            bytes := bytes + sizes[i];
            chosen := chosen || ctids[i];
            counts[owners[i]] := counts[owners[i]] + 1;
        END LOOP;
        IF cardinality(chosen) > 0 THEN
            RETURN QUERY SELECT * FROM {schema}.admit_from_lanes(chosen, p_claimer, p_lease, present);
        END IF;
        PERFORM {schema}.leave_lanes(lanes, counts, blockers, each_fetched, is_full, present);
        EXIT WHEN is_full OR taken >= p_count;
        -- A claim that has looked at so many lanes in vain lets go of them before it looks on.
        is_full := clock_timestamp() > began + interval '100 ms';
        EXIT WHEN is_full;
        each_gave := greatest(0.5, least(
            each_gave, cardinality(chosen)::double precision / cardinality(lanes)));
    END LOOP;
    IF taken > 0 THEN
        PERFORM {schema}.note_lease(p_claimer, p_lease),
            {schema}.count_shared_starts(p_shared, starts, p_node, present);
    END IF;
    IF cardinality(p_shared) > 0 THEN
        -- Other nodes may have more threads when the rate lets the next one start.
        PERFORM {schema}.wake_at(clock_timestamp() + make_interval(secs => {schema}.next_opening(
            '{}', '{}', p_shared, p_node, '-infinity')));
    END IF;
    last.id := -1;
    is_full := is_full OR taken >= p_count;
    last.attempts := is_full::integer;
    IF NOT is_full THEN
        last.waited := {schema}.next_opening(
            p_domains, p_types, p_shared, p_node, '-infinity');
        IF is_left OR EXISTS (
            SELECT FROM unnest(p_domains, p_types) q (domain, type)
            WHERE EXISTS (SELECT FROM {schema}.turn t
                          WHERE t.domain = q.domain AND t.type = q.type)
                AND NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused))
        THEN
            last.waited := 0;
        END IF;
    END IF;
    RETURN NEXT last;
END
$$;

-- Moves these rows of limited, which the caller has locked together with their lanes, into ready,
-- claimed.
CREATE FUNCTION {schema}.admit_from_lanes(
    p_ctids tid[], p_claimer bigint, p_lease interval, p_now timestamptz
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM {schema}.limited w USING unnest(p_ctids) WITH ORDINALITY c (ctid, place)
        WHERE w.ctid = c.ctid
        RETURNING w.*, c.place
    )
    INSERT INTO {schema}.ready AS r (
        token, losses, claimer, claimed_at, lease_until, created_at, due_at, command_id,
        correlation_id, priority, attempts, max_attempts, domain, type, reply_to, data, error_code,
        error_message, batch_id, caller, key, unique_key, lane_position, expires_at)
    SELECT token + 1, losses, p_claimer, p_now, clock_timestamp() + p_lease, created_at, due_at,
        command_id, correlation_id, priority, attempts, max_attempts, domain, type, reply_to, data,
        error_code, error_message, batch_id, caller, key, unique_key, lane_position, expires_at
    FROM gone ORDER BY place
    RETURNING r.domain::text, r.priority::smallint, r.id, r.token, r.command_id, r.type::text,
        r.data::text, r.attempts, r.losses, r.max_attempts::smallint, r.correlation_id,
        r.reply_to::text, {schema}.finite(r.created_at),
        extract(epoch FROM p_now
            - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision, r.batch_id,
        r.caller, r.ctid;
END
$$;

-- The turn of a lane after a claim that had it at this turn, or 0, and took so many of its commands:
-- a lane that has got a start waits behind the others.
CREATE FUNCTION {schema}.turn_after(p_turn bigint, p_count integer) RETURNS bigint
LANGUAGE sql VOLATILE
RETURN CASE WHEN p_turn > 0 AND p_count = 0 THEN p_turn
    ELSE nextval('{schema}.turn_id_seq') END;

-- Notes what locked lanes wait for after a claim has taken commands of them: nothing, their rate, a
-- shared limit, or another claim, to which it leaves a turn. A lane that is full gets one when a
-- place is free. One whose next rows are locked, as if they were being canceled, is looked at again
-- a second later.
CREATE FUNCTION {schema}.leave_lanes(
    p_lanes {schema}.locked_lane[], p_counts integer[], p_blockers text[], p_fetched integer,
    p_is_full boolean, p_now timestamptz
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
        SELECT a.*,
            -- Only for lanes in which something waits.
            CASE WHEN a.priority IS NULL THEN 'nothing'
                 WHEN a.blocker IS NOT NULL THEN 'shared'
                 WHEN a.count >= a.rate_room THEN 'rate'
                 WHEN a.count >= a.room THEN 'place'
                 WHEN p_is_full OR a.count >= p_fetched THEN 'turn'
                 ELSE 'row' END AS waits
        FROM after a
    ), turns AS (
        INSERT INTO {schema}.turn (id, domain, type, key, priority) OVERRIDING SYSTEM VALUE
        SELECT {schema}.turn_after(turn, count), domain, type, key, priority
        FROM judged WHERE waits = 'turn'
    ), changed AS (
        UPDATE {schema}.lane l SET
            next_start = CASE WHEN j.count > 0 THEN j.start_then ELSE l.next_start END,
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

-- Seconds until a rate lets one of these types start again, after p_after; NULL if none will.
CREATE FUNCTION {schema}.next_opening(
    p_domains text[], p_types text[], p_shared text[], p_node bigint, p_after timestamptz
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
                AND {schema}.starts_allowed(s.next_start, f.starts_per_second, f.burst, clock_timestamp()) = 0
                AND EXISTS (SELECT FROM {schema}.lane l WHERE l.waits_for = f.name)
        ) o);
END
$$;

-- Claims for a worker some of whose types (p_lane_types, of p_lane_domains) have limits: p_lanes of
-- their lanes and, with what is left of p_free, of its other types (p_types), but what is more
-- urgent than any lane before both. Then ahead of its threads, only what is quick: p_lanes_ahead and
-- p_ahead. At first up to p_strays commands of limited types that are in ready, in p_stray_domains,
-- move into their lanes.
--
-- The rows are those of several claims, each after a row whose id is -2 and whose attempts number
-- the claim: 1 for the strays, 2 for lanes, 3 for p_free, 4 for p_ahead.
CREATE FUNCTION {schema}.claim_with_lanes(
    p_domains text[], p_priorities smallint[], p_floors bigint[], p_below boolean, p_types text[],
    p_free integer, p_bytes bigint, p_quick_floors bigint[], p_quick_types text[],
    p_ahead integer, p_bytes_ahead bigint, p_most_losses smallint, p_claimer bigint,
    p_lease interval, p_stray_domains text[], p_stray_priorities smallint[],
    p_stray_floors bigint[], p_stray_below boolean, p_stray_types text[], p_strays integer,
    p_lane_domains text[], p_lane_types text[], p_shared text[], p_lanes integer,
    p_quick_lane_domains text[], p_quick_lane_types text[], p_lanes_ahead integer, p_node bigint
) RETURNS SETOF {schema}.claimed
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    head {schema}.claimed;
    free integer := p_free;
    urgent smallint;
    rows integer;
BEGIN
    head.id := -2;
    head.attempts := 1;
    RETURN NEXT head;
    RETURN QUERY SELECT * FROM {schema}.claim(
        p_stray_domains, p_stray_priorities, p_stray_floors, p_stray_below, p_stray_types,
        p_strays, 1, p_bytes, p_most_losses, NULL, p_lease);
    head.attempts := 3;
    RETURN NEXT head;
    SELECT min(t.priority) INTO urgent
    FROM unnest(p_lane_domains, p_lane_types) q (domain, type), LATERAL (
        SELECT u.priority FROM {schema}.turn u
        WHERE u.domain = q.domain AND u.type = q.type
        ORDER BY u.domain, u.type, u.priority LIMIT 1) t;
    IF urgent > 0 THEN
        RETURN QUERY
        SELECT c.* FROM (
            SELECT array_agg(q.domain ORDER BY q.place) AS domains,
                array_agg(q.priority ORDER BY q.place) AS priorities,
                array_agg(q.floor ORDER BY q.place) AS floors
            FROM unnest(p_domains, p_priorities, p_floors)
                WITH ORDINALITY q (domain, priority, floor, place)
            WHERE q.priority < urgent) q, LATERAL {schema}.claim(
                q.domains, q.priorities, q.floors, false, p_types, free, 1, p_bytes,
                p_most_losses, p_claimer, p_lease) c
        WHERE c.token IS NOT NULL;
        GET DIAGNOSTICS rows = ROW_COUNT;
        free := free - rows;
    END IF;
    head.attempts := 2;
    RETURN NEXT head;
    RETURN QUERY SELECT * FROM {schema}.claim_in_lanes(
        p_lane_domains, p_lane_types, p_shared, least(free, p_lanes), p_bytes, p_claimer, p_lease,
        p_node);
    GET DIAGNOSTICS rows = ROW_COUNT;
    free := free - greatest(0, rows - 1);
    RETURN QUERY SELECT * FROM {schema}.claim_in_lanes(
        p_quick_lane_domains, p_quick_lane_types, p_shared, p_lanes_ahead, p_bytes_ahead,
        p_claimer, p_lease, p_node);
    head.attempts := 3;
    RETURN NEXT head;
    RETURN QUERY SELECT * FROM {schema}.claim(
        p_domains, p_priorities, p_floors, p_below, p_types,
        CASE WHEN cardinality(p_types) > 0 THEN free ELSE 0 END, 1, p_bytes, p_most_losses,
        p_claimer, p_lease);
    head.attempts := 4;
    RETURN NEXT head;
    RETURN QUERY SELECT * FROM {schema}.claim(
        p_domains, p_priorities, p_quick_floors, false, p_quick_types, p_ahead, 0, p_bytes_ahead,
        p_most_losses, p_claimer, p_lease);
END
$$;
