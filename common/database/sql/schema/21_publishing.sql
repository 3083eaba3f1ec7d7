-- What nodes publish of themselves for operators: a row a node, written each minute, and every
-- two seconds only while an operator watches. It stays for a day after the node's last publication.

-- Supervisors and standalone workers. Texts are JSON that clients parse.
CREATE TABLE {schema}.published_node (
    -- As in incarnation.
    node bigint PRIMARY KEY,
    name text NOT NULL CHECK (octet_length(name) <= 1000),
    host text NOT NULL CHECK (octet_length(host) <= 1000),
    published_at timestamptz NOT NULL,
    -- Its latest publication says that it stops.
    stopped boolean NOT NULL,
    -- Times in it are seconds before and after published_at.
    state text NOT NULL CHECK (octet_length(state) <= 1048576),
    -- Executions by type since the node's start.
    counters text NOT NULL CHECK (octet_length(counters) <= 1048576),
    -- Stacks of processes that have exited, by the number of the exit. Not for monitors.
    stacks text NOT NULL CHECK (octet_length(stacks) <= 1048576)
);

-- Until when each role watches the fleet.
CREATE TABLE {schema}.fleet_watch (
    role name PRIMARY KEY,
    watched_until timestamptz NOT NULL
);

-- Whether a node has stopped, or has missed two publications.
CREATE FUNCTION {schema}.is_gone(p_stopped boolean, p_published_at timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN p_stopped OR p_published_at < clock_timestamp() - interval '150 seconds';

-- Nodes of the last day by state. Lost ones are gone, and had not stopped before.
CREATE FUNCTION {schema}.count_nodes() RETURNS TABLE (state text, number bigint)
LANGUAGE sql STABLE SECURITY DEFINER
AS $$
    SELECT CASE WHEN n.stopped THEN 'stopped'
        WHEN {schema}.is_gone(n.stopped, n.published_at) THEN 'lost' ELSE 'running' END, count(*)
    FROM {schema}.published_node n
    GROUP BY 1
$$;

-- What p_node, or a node of its name and host that is gone, has published last, and how many
-- seconds ago; removes the rows of the latter, in whose place p_node comes. A node whose pid is one
-- of p_dead is gone at once.
CREATE FUNCTION {schema}.succeed_node(
    p_node bigint, p_name text, p_host text, p_dead integer[]
)
RETURNS TABLE (state text, stacks text, age double precision)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM {schema}.published_node n
        WHERE n.node <> p_node AND n.name = p_name AND n.host = p_host
            AND ({schema}.is_gone(n.stopped, n.published_at)
                 OR (n.state::jsonb ->> 'pid')::integer = ANY (p_dead))
        RETURNING n.*
    )
    SELECT f.state, f.stacks,
        extract(epoch FROM clock_timestamp() - f.published_at)::double precision
    FROM (SELECT * FROM gone
          UNION ALL
          SELECT * FROM {schema}.published_node n WHERE n.node = p_node) f
    ORDER BY f.node = p_node DESC, f.published_at DESC
    LIMIT 1;
END
$$;

-- Publishes the state of a node, and returns for how many seconds from now operators watch the
-- fleet, at least 0. NULL as p_stacks leaves the stacks as they are, and copies nothing of them.
CREATE FUNCTION {schema}.publish_node(
    p_node bigint, p_name text, p_host text, p_stopped boolean,
    p_state text, p_counters text, p_stacks text
) RETURNS double precision
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    UPDATE {schema}.published_node n SET
        name = p_name, host = p_host, published_at = clock_timestamp(), stopped = p_stopped,
        state = p_state, counters = p_counters, stacks = coalesce(p_stacks, n.stacks)
    WHERE n.node = p_node;
    IF NOT FOUND THEN
        PERFORM {schema}.retain_nodes();
        INSERT INTO {schema}.published_node
        VALUES (p_node, p_name, p_host, clock_timestamp(), p_stopped, p_state, p_counters,
                coalesce(p_stacks, '{}'))
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN coalesce((SELECT greatest(0, extract(epoch FROM max(w.watched_until)
                                                           - clock_timestamp()))
                     FROM {schema}.fleet_watch w), 0);
END
$$;

-- Removes nodes that are gone for a day, and those that published longest ago of more than 500, or
-- of more than 100 that are gone.
CREATE FUNCTION {schema}.retain_nodes() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM {schema}.published_node n
    WHERE n.node IN (
        SELECT x.node
        FROM (SELECT p.node, p.published_at, g.gone,
                row_number() OVER (ORDER BY p.published_at DESC) AS nth,
                row_number() OVER (PARTITION BY g.gone ORDER BY p.published_at DESC) AS nth_of_kind
              FROM {schema}.published_node p,
                  LATERAL {schema}.is_gone(p.stopped, p.published_at) g (gone)) x
        WHERE x.published_at < clock_timestamp() - interval '1 day' OR x.nth > 500
            OR x.gone AND x.nth_of_kind > 100);
    GET DIAGNOSTICS removed = ROW_COUNT;
    -- Waits for no transaction of those who watch: a monitor must not hold up a steward.
    DELETE FROM {schema}.fleet_watch w
    WHERE w.role IN (
        SELECT x.role FROM {schema}.fleet_watch x
        WHERE x.watched_until < clock_timestamp()
        FOR UPDATE SKIP LOCKED);
    RETURN removed;
END
$$;

-- Lets all nodes publish every two seconds for the next p_seconds, from 5 to 60. One row a role,
-- and one notification a watch: a role that watches goes on with its next call.
CREATE FUNCTION {schema}.watch_fleet(p_seconds double precision) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    -- A node that publishes once more before the watch ends reads this one then.
    is_watched boolean := EXISTS (
        SELECT FROM {schema}.fleet_watch w
        WHERE w.watched_until > clock_timestamp() + interval '4 seconds');
BEGIN
    INSERT INTO {schema}.fleet_watch AS w (role, watched_until)
    VALUES (session_user,
            clock_timestamp() + make_interval(secs => greatest(5, least(p_seconds, 60))))
    ON CONFLICT (role) DO UPDATE SET
        watched_until = greatest(w.watched_until, EXCLUDED.watched_until);
    IF NOT is_watched THEN
        PERFORM {schema}.notify('{channel}_watch', '');
    END IF;
END
$$;
