-- Why a command does not run now.

-- Nodes that renew leases or wait for work, and the types that they handle.
CREATE FUNCTION {schema}.living_nodes() RETURNS TABLE (types text[])
LANGUAGE sql STABLE
AS $$
    SELECT n.types FROM {schema}.node n
    WHERE n.renewed_at > clock_timestamp() - n.lease
        OR EXISTS (SELECT FROM {schema}.waiter w
                   WHERE w.node = n.id AND w.armed_until > clock_timestamp())
$$;

-- What is known about a command, wherever it is; no row if it is unknown. nodes and handlers count
-- the nodes that live, and those of them with a handler of its type; ahead counts the commands of
-- these nodes' types that are claimed before it, among the first p_count that wait, and is NULL for
-- one that is not in ready. No payload or message, which monitors may not see.
CREATE FUNCTION {schema}.explain(
    p_domain text, p_command_id uuid, p_count integer,
    OUT place text, OUT type text, OUT status text, OUT error_code text, OUT attempts integer,
    OUT losses integer, OUT worker text, OUT claimed_at timestamptz, OUT due_at timestamptz,
    OUT ended_at timestamptz, OUT expires_at timestamptz, OUT present timestamptz,
    OUT paused boolean, OUT nodes bigint, OUT handlers bigint, OUT ahead bigint, OUT many boolean
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
#variable_conflict use_column
DECLARE
    own record;
    handled text[];
BEGIN
    -- One statement: a row on its way between two tables is seen in one of them.
    SELECT f.* INTO own
    FROM (
        SELECT 'ready' AS place, r.type::text AS type,
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
    SELECT count(*), count(*) FILTER (WHERE (p_domain || ' ' || own.type) = ANY (l.types))
    INTO nodes, handlers
    FROM {schema}.living_nodes() l;
    IF own.place = 'ready' AND own.status = 'PENDING' THEN
        SELECT array_agg(DISTINCT t.name) INTO handled
        FROM {schema}.living_nodes() l, unnest(l.types) t (name);
        SELECT count(*) FILTER (WHERE (p_domain || ' ' || b.type) = ANY (handled)),
            count(*) = p_count
        INTO ahead, many
        FROM (
            SELECT r.type FROM {schema}.ready r
            WHERE r.domain = p_domain
                AND (r.priority < own.priority OR r.priority = own.priority AND r.id < own.id)
                AND (r.lease_until IS NULL OR r.lease_until <= clock_timestamp())
            LIMIT p_count
        ) b;
    END IF;
    SELECT own.place, own.type, own.status, own.error_code, own.attempts, own.losses,
        (SELECT i.worker FROM {schema}.incarnation i WHERE i.id = own.claimer), own.claimed_at,
        {schema}.finite(own.due_at), own.ended_at, own.expires_at, clock_timestamp(),
        EXISTS (SELECT FROM {schema}.domain d WHERE d.name = p_domain AND d.paused)
    INTO place, type, status, error_code, attempts, losses, worker, claimed_at, due_at, ended_at,
        expires_at, present, paused;
    RETURN NEXT;
END
$$;
