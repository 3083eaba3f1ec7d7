-- Claims of workers in lanes; see 14_lanes.sql.
--
--   claim_with_lanes             moves strays into their lanes, then claims in lanes and of ready
--   `-- claim_in_lanes
--       |-- lock_shared          locks the states of shared limits
--       |-- measure_shared       returns their room
--       |-- let_wait_no_longer   gives turns to lanes that have waited for that
--       |-- lock_lanes           locks lanes that have a turn, or whose rate lets them start
--       |-- measure_lanes        returns their room
--       |-- admit_from_lanes     moves commands into ready, claimed
--       |-- leave_lanes          notes what each lane waits for now
--       `-- next_opening         returns when a rate lets a lane start again

-- Claims up to p_count commands of lanes of these types, of p_bytes of payload or just one.
-- p_shared are the shared limits of these types, sorted. Commands of a higher priority come first,
-- then those of the lanes with the fewest places taken, then those with the oldest turn. Locks
-- lanes until the transaction ends; waits only for the claims of the same shared limits. It takes
-- commands from p_lowest to p_highest.
--
-- The last row is no claim: its id is -1, and waited the seconds until a rate lets a lane start
-- again, if that is known; 0 or less if another claim has locked something that this one could have
-- taken. Its attempts are 1 if it may have left commands that could start.
CREATE FUNCTION {schema}.claim_in_lanes(
    p_domains text[], p_types text[], p_shared text[], p_count integer, p_bytes bigint,
    p_claimer bigint, p_lease interval, p_node bigint, p_lowest smallint, p_highest smallint
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
    -- When their room was measured.
    measured timestamptz := began;
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
    -- Further turns to look at, as a lane may have several, and as lanes with few places taken come
    -- first. Those of a shared limit are served in the order of their turns.
    spare integer := CASE WHEN cardinality(p_shared) > 0 THEN 16 ELSE 4 END;
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
        IF {schema}.lock_shared(p_shared, p_node) THEN
            measured := clock_timestamp();
            rooms := {schema}.measure_shared(p_shared, p_node, p_count, measured);
        ELSE
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
            domains, types, ((p_count - taken) / each_gave)::integer + spare, p_lowest, p_highest);
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
                            AND coalesce(w.key, '') = l.key
                            AND w.priority >= greatest(l.first_priority, p_lowest)
                            AND w.priority <= p_highest
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
            RETURN QUERY
            SELECT * FROM {schema}.admit_from_lanes(chosen, p_claimer, p_lease, present);
        END IF;
        PERFORM {schema}.leave_lanes(
            lanes, counts, blockers, each_fetched, is_full, present, p_lowest, p_highest);
        EXIT WHEN is_full OR taken >= p_count;
        -- A claim that has locked lanes for that long in vain releases them before the next ones.
        is_full := clock_timestamp() > began + interval '100 ms';
        EXIT WHEN is_full;
        each_gave := greatest(0.5, least(
            each_gave, cardinality(chosen)::double precision / cardinality(lanes)));
        spare := least(64, 2 * spare);
    END LOOP;
    IF taken > 0 THEN
        IF NOT EXISTS (
            SELECT FROM {schema}.lease l
            WHERE l.claimer = p_claimer AND l.ends_at BETWEEN present AND present + p_lease)
        THEN
            PERFORM {schema}.note_lease(p_claimer, p_lease);
        END IF;
    END IF;
    IF cardinality(p_shared) > 0 THEN
        PERFORM {schema}.count_shared_starts(p_shared, starts, p_node, present);
        -- Other nodes may have more threads when the rate lets the next one start.
        PERFORM {schema}.wake_at(clock_timestamp() + make_interval(secs => {schema}.next_opening(
            '{}', '{}', p_shared, p_node, '-infinity', measured)));
    END IF;
    last.id := -1;
    is_full := is_full OR taken >= p_count;
    last.attempts := is_full::integer;
    IF NOT is_full THEN
        last.waited := {schema}.next_opening(
            p_domains, p_types, p_shared, p_node, '-infinity', measured);
        IF is_left OR EXISTS (
            SELECT FROM unnest(p_domains, p_types) q (domain, type)
            WHERE (EXISTS (SELECT FROM {schema}.turn t
                           WHERE t.domain = q.domain AND t.type = q.type
                               AND t.priority BETWEEN p_lowest AND p_highest)
                    -- A claim of a node that has no room has had it locked, and ended meanwhile.
                    OR EXISTS (SELECT FROM unnest(p_shared, rooms) s (name, room)
                               JOIN {schema}.lane l ON l.waits_for = s.name
                               WHERE s.room > 0 AND l.domain = q.domain AND l.type = q.type))
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
        correlation_id, priority, attempts, max_attempts, domain, type, reply_to, headers, data,
        error_code, error_message, batch_id, caller, key, unique_key, lane_position, expires_at)
    SELECT token + 1, losses, p_claimer, p_now, clock_timestamp() + p_lease, created_at, due_at,
        command_id, correlation_id, priority, attempts, max_attempts, domain, type, reply_to,
        headers, data, error_code, error_message, batch_id, caller, key, unique_key, lane_position,
        expires_at
    FROM gone ORDER BY place
    RETURNING r.domain::text, r.priority::smallint, r.id, r.token, r.command_id, r.type::text,
        r.data::text, r.attempts, r.losses, r.max_attempts::smallint, r.correlation_id,
        {schema}.reply_to_and_headers(r.reply_to, r.headers), {schema}.finite(r.created_at),
        extract(epoch FROM p_now
            - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision, r.batch_id,
        r.caller, r.ctid;
END
$$;

-- Claims for a worker some of whose types (p_lane_types, of p_lane_domains) have limits: p_lanes of
-- their lanes and, with what is left of p_free, of its other types (p_types), but what is more
-- urgent than any lane before both. Then ahead of its threads, only what is quick: p_lanes_ahead
-- and p_ahead. At first up to p_strays commands of limited types that are in ready, in
-- p_stray_domains, move into their lanes.
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
    -- Of the claim's priorities: its queues have them in ascending order.
    lowest smallint := p_priorities[1];
    highest smallint := p_priorities[cardinality(p_priorities)];
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
        WHERE u.domain = q.domain AND u.type = q.type AND u.priority BETWEEN lowest AND highest
        ORDER BY u.domain, u.type, u.priority LIMIT 1) t;
    IF urgent > lowest AND cardinality(p_types) > 0 THEN
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
        p_node, lowest, highest);
    GET DIAGNOSTICS rows = ROW_COUNT;
    free := free - greatest(0, rows - 1);
    RETURN QUERY SELECT * FROM {schema}.claim_in_lanes(
        p_quick_lane_domains, p_quick_lane_types, p_shared, p_lanes_ahead, p_bytes_ahead,
        p_claimer, p_lease, p_node, lowest, highest);
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
