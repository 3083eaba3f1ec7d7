-- Why a command does not run now.

-- What is known about a command, wherever it is; no row if it is unknown. source is its table;
-- nodes, handlers and claimers count the nodes that live, those of them that run its type, and
-- those that also claim its priority; ahead counts the commands that these nodes claim before it,
-- among the first p_count that wait, and is NULL for one that is not in ready. No payload or
-- message, which monitors may not see.
CREATE FUNCTION {schema}.explain(
    p_domain text, p_command_id uuid, p_count integer,
    OUT source text, OUT type text, OUT status text, OUT error_code text, OUT attempts integer,
    OUT losses integer, OUT worker text, OUT claimed_at timestamptz, OUT due_at timestamptz,
    OUT ended_at timestamptz, OUT expires_at timestamptz, OUT present timestamptz,
    OUT paused boolean, OUT nodes bigint, OUT handlers bigint, OUT claimers bigint,
    OUT missing_tags text[], OUT priority integer, OUT ahead bigint, OUT many boolean
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
#variable_conflict use_column
DECLARE
    own record;
BEGIN
    -- One statement: a row on its way between two tables is seen in one of them.
    SELECT f.* INTO own
    FROM (
        SELECT 'ready' AS source, r.type::text AS type,
            CASE WHEN {schema}.is_waiting(r.claimer, r.lease_until) THEN 'PENDING'
                 ELSE 'IN_PROGRESS' END AS status,
            r.error_code, r.attempts, r.losses + (r.claimer IS NOT NULL)::integer AS losses,
            r.claimer, r.claimed_at, coalesce(r.due_at::timestamptz, r.created_at) AS due_at,
            NULL::timestamptz AS ended_at, r.expires_at::timestamptz AS expires_at,
            r.priority::integer AS priority, r.id
        FROM {schema}.ready r
        WHERE r.domain || '' = p_domain AND r.command_id = p_command_id
        UNION ALL
        SELECT 'scheduled', s.type, 'PENDING', s.error_code, s.attempts, s.losses, NULL,
            s.claimed_at, s.due_at, NULL, s.expires_at, s.priority, s.id
        FROM {schema}.scheduled s
        WHERE s.domain = p_domain AND s.command_id = p_command_id
        UNION ALL
        SELECT 'limited', l.type, 'PENDING', l.error_code, l.attempts, l.losses, NULL,
            l.claimed_at, coalesce(l.due_at::timestamptz, l.created_at), NULL, l.expires_at,
            l.priority, NULL
        FROM {schema}.limited l
        WHERE l.domain || '' = p_domain AND l.command_id = p_command_id
        UNION ALL
        SELECT 'troubleshooting', t.type, 'IN_TROUBLESHOOTING_QUEUE', t.error_code, t.attempts,
            t.losses, NULL, t.claimed_at, t.due_at, t.failed_at, t.expires_at, t.priority, NULL
        FROM {schema}.troubleshooting t
        WHERE t.domain = p_domain AND t.command_id = p_command_id
        UNION ALL
        SELECT 'finished', h.type, h.status, h.error_code, h.attempts, h.losses, h.claimer,
            h.claimed_at, h.due_at, h.finished_at, h.expires_at, h.priority, NULL
        FROM {schema}.finished h
        WHERE h.domain = p_domain AND h.command_id = p_command_id
    ) f
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*), count(*) FILTER (WHERE (p_domain || ' ' || own.type) = ANY (l.types)
            OR bridged),
        count(*) FILTER (
            WHERE (p_domain || ' ' || own.type) = ANY (l.types)
                AND coalesce(own.priority BETWEEN l.priorities[1] AND l.priorities[2], true)
                OR bridged)
    INTO nodes, handlers, claimers
    FROM {schema}.living_nodes() l, {schema}.is_bridged(p_domain, own.type) bridged;
    IF own.source = 'ready' AND own.status = 'PENDING' THEN
        SELECT coalesce(sum(b.number) FILTER (
                WHERE {schema}.is_handled(p_domain, b.type, b.priority)), 0),
            coalesce(sum(b.number), 0) = p_count
        INTO ahead, many
        FROM (
            SELECT f.type, f.priority, count(*) AS number
            FROM (
                SELECT r.type::text, r.priority::smallint FROM {schema}.ready r
                WHERE r.domain = p_domain
                    AND (r.priority < own.priority OR r.priority = own.priority AND r.id < own.id)
                    AND (r.lease_until IS NULL OR r.lease_until <= clock_timestamp())
                LIMIT p_count
            ) f
            GROUP BY 1, 2
        ) b;
    END IF;
    SELECT own.source, own.type, own.status, own.error_code, own.attempts, own.losses,
        (SELECT i.worker FROM {schema}.incarnation i WHERE i.id = own.claimer), own.claimed_at,
        {schema}.finite(own.due_at), own.ended_at, own.expires_at, clock_timestamp(),
        EXISTS (SELECT FROM {schema}.domain d WHERE d.name = p_domain AND d.paused),
        {schema}.missing_tags(p_domain, own.type), own.priority
    INTO source, type, status, error_code, attempts, losses, worker, claimed_at, due_at, ended_at,
        expires_at, present, paused, missing_tags, priority;
    RETURN NEXT;
END
$$;

-- Which limits a command waits at, if it waits in limited (keyed: with a key): one row for each
-- that is reached. Their kind is 'order', 'places' or 'rate', name is that of the limit. most is
-- the number that may run at once, on each node with per_node; commands are up to five of those
-- that run, and number is their number, up to p_count. An ordered lane has one, in the table
-- source. at is when a rate lets the next one start, or that one is due. The last row, of kind
-- 'ahead', has the number of those that wait before it.
CREATE FUNCTION {schema}.explain_limits(p_domain text, p_command_id uuid, p_count integer)
RETURNS TABLE (
    kind text, name text, shared boolean, keyed boolean, most integer, per_node boolean,
    commands uuid[], number bigint, source text, at timestamptz
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
#variable_conflict use_column
DECLARE
    own record;
    shared_names text[];
    limit_of record;
    lane {schema}.lane;
    present timestamptz := clock_timestamp();
BEGIN
    SELECT w.type::text AS type, coalesce(w.key, '') AS key, w.priority::integer AS priority,
        w.lane_position INTO own
    FROM {schema}.limited w
    WHERE w.domain || '' = p_domain AND w.command_id = p_command_id LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT l.* INTO lane FROM {schema}.lane l
    WHERE l.domain = p_domain AND l.type = own.type AND l.key = own.key;
    SELECT m.shared INTO shared_names FROM {schema}.limits_of(p_domain, own.type) m;
    SELECT f.* INTO limit_of
    FROM {schema}.limits_of(p_domain, own.type) m JOIN {schema}.limit_in_force f ON f.name = m.own;
    IF FOUND AND limit_of.ordered THEN
        RETURN QUERY
        SELECT 'order', limit_of.name, false, own.key <> '', 1, false, ARRAY[h.command_id],
            1::bigint, h.source, h.due_at
        FROM {schema}.lane_holder(p_domain, own.type, own.key, limit_of.on_trouble = 'block') h;
    ELSIF FOUND THEN
        RETURN QUERY
        SELECT 'places', limit_of.name, false, own.key <> '', limit_of.concurrency, false,
            (array_agg(h.command_id ORDER BY h.id))[:5], count(*), 'ready', NULL::timestamptz
        FROM (SELECT r.command_id, r.id FROM {schema}.ready r
              WHERE r.domain = p_domain AND r.type = own.type AND coalesce(r.key, '') = own.key
                  AND r.lane_position IS NOT NULL
              LIMIT p_count) h
        HAVING count(*) >= limit_of.concurrency;
    END IF;
    RETURN QUERY
    SELECT 'rate', limit_of.name, false, own.key <> '', NULL::integer, false, NULL::uuid[],
        NULL::bigint, NULL,
        {schema}.opening_time(lane.next_start, limit_of.starts_per_second, limit_of.burst)
    WHERE {schema}.starts_allowed(coalesce(lane.next_start, 'epoch'), limit_of.starts_per_second,
                                  limit_of.burst, present) = 0;
    RETURN QUERY
    SELECT 'places', f.name, true, false, f.concurrency, f.per_node, h.commands, h.count, 'ready',
        NULL::timestamptz
    FROM unnest(shared_names) n (name) JOIN {schema}.limit_in_force f ON f.name = n.name,
        LATERAL (SELECT (array_agg(s.command_id ORDER BY s.id))[:5] AS commands, count(*) AS count
                 FROM {schema}.shared_holders(f.name, p_count) s) h
    WHERE h.count >= f.concurrency AND (NOT f.per_node OR lane.waits_for = f.name);
    RETURN QUERY
    SELECT 'rate', f.name, true, false, NULL::integer, f.per_node, NULL::uuid[], NULL::bigint, NULL,
        {schema}.opening_time(min(s.next_start), f.starts_per_second, f.burst)
    FROM unnest(shared_names) n (name) JOIN {schema}.limit_in_force f ON f.name = n.name
    JOIN {schema}.shared_state s ON s.name = f.name
    GROUP BY f.name, f.per_node, f.starts_per_second, f.burst
    HAVING {schema}.starts_allowed(
        min(s.next_start), f.starts_per_second, f.burst, present) = 0;
    RETURN QUERY
    SELECT 'ahead', NULL, false, own.key <> '', NULL::integer, false, NULL::uuid[], count(*), NULL,
        NULL::timestamptz
    FROM (SELECT FROM {schema}.limited w
          WHERE w.domain = p_domain AND w.type = own.type AND coalesce(w.key, '') = own.key
              AND (w.priority, w.lane_position) < (own.priority, own.lane_position)
          LIMIT p_count) w;
END
$$;

-- The command that holds an ordered lane, and when it is due if it waits for a retry.
CREATE FUNCTION {schema}.lane_holder(p_domain text, p_type text, p_key text, p_blocks boolean)
RETURNS TABLE (command_id uuid, source text, due_at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT r.command_id, 'ready', NULL::timestamptz FROM {schema}.ready r
    WHERE r.domain = p_domain AND r.type = p_type AND coalesce(r.key, '') = p_key
        AND r.lane_position IS NOT NULL
    UNION ALL
    SELECT s.command_id, 'scheduled', s.due_at FROM {schema}.scheduled s
    WHERE s.domain = p_domain AND s.type = p_type AND coalesce(s.key, '') = p_key
        AND s.lane_position IS NOT NULL
    UNION ALL
    SELECT t.command_id, 'troubleshooting', NULL FROM {schema}.troubleshooting t
    WHERE p_blocks AND t.domain = p_domain AND t.type = p_type AND coalesce(t.key, '') = p_key
        AND t.lane_position IS NOT NULL
    LIMIT 1
$$;

-- Commands that hold a place of a shared limit, as count_shared counts them.
CREATE FUNCTION {schema}.shared_holders(p_name text, p_most integer)
RETURNS TABLE (command_id uuid, id bigint)
LANGUAGE sql STABLE
AS $$
    SELECT r.command_id, r.id
    FROM {schema}.limited_type t, LATERAL (
        SELECT r.command_id, r.id FROM {schema}.ready r
        WHERE r.domain = t.domain AND r.lane_position IS NOT NULL
            AND CASE WHEN t.type <> '' THEN r.type = t.type
                ELSE NOT EXISTS (SELECT FROM {schema}.limited_type o
                                 WHERE o.domain = r.domain AND o.type = r.type) END) r
    WHERE p_name = ANY (t.shared)
    LIMIT p_most
$$;
