-- Tags of types, and what no node can run because of tags or of priorities.

-- The tags that a worker needs to claim commands of a type ('domain type'), as registries declare
-- them.
CREATE TABLE {schema}.type_tags (
    name text COLLATE "C",
    app text COLLATE "C",
    tags text[] COLLATE "C" NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, app)
);

-- Makes p_tags, an object with an array for each type, all that an app declares; one that declares
-- nothing, and declared nothing before, writes nothing.
CREATE FUNCTION {schema}.declare_tags(p_app text, p_tags json) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM json_each(p_tags))
        AND NOT EXISTS (SELECT FROM {schema}.type_tags d WHERE d.app = p_app)
    THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.type_tags d
    WHERE d.app = p_app AND NOT EXISTS (SELECT FROM json_each(p_tags) t WHERE t.key = d.name);
    INSERT INTO {schema}.type_tags (name, app, tags)
    SELECT t.key, p_app, ARRAY(SELECT json_array_elements_text(t.value))
    FROM json_each(p_tags) t ORDER BY t.key
    ON CONFLICT (name, app) DO UPDATE SET
        tags = EXCLUDED.tags, declared_at = EXCLUDED.declared_at;
END
$$;

-- The tags that a type needs, by the latest declaration, and that no living node has, or not all of
-- them together; NULL if there are none.
CREATE FUNCTION {schema}.missing_tags(p_domain text, p_type text) RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER
AS $$
    SELECT coalesce(nullif(ARRAY(
            SELECT unnest(d.tags) EXCEPT SELECT unnest(n.tags) FROM {schema}.living_nodes() n
            ORDER BY 1), '{}'), d.tags)
    FROM (SELECT t.tags FROM {schema}.type_tags t
          WHERE t.name = p_domain || ' ' || p_type
          ORDER BY t.declared_at DESC, t.app LIMIT 1) d
    WHERE NOT EXISTS (SELECT FROM {schema}.living_nodes() n WHERE d.tags <@ n.tags)
$$;

-- The priorities of commands that wait for p_seconds or more, and that no living node claims
-- although one runs others of their type: of these domains, or of all (NULL). While no node has a
-- band of priorities it reads nothing; else all of ready and limited that is of these domains.
CREATE FUNCTION {schema}.unclaimed_priorities(p_domains text[], p_seconds double precision)
RETURNS TABLE (domain text, type text, priorities smallint[])
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
#variable_conflict use_column
DECLARE
    latest timestamptz := clock_timestamp() - make_interval(secs => p_seconds);
BEGIN
    IF NOT EXISTS (SELECT FROM {schema}.node n WHERE n.priorities IS NOT NULL) THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT w.domain, w.type, array_agg(w.priority ORDER BY w.priority)
    FROM (
        SELECT q.domain, q.type, q.priority
        FROM (
            SELECT r.domain::text, r.type::text, r.priority::smallint
            FROM {schema}.ready r
            WHERE coalesce(r.due_at, r.created_at) <= latest
                AND (r.lease_until IS NULL OR {schema}.is_waiting(r.claimer, r.lease_until))
            UNION ALL
            SELECT l.domain::text, l.type::text, l.priority::smallint
            FROM {schema}.limited l
            WHERE coalesce(l.due_at, l.created_at) <= latest
        ) q
        WHERE p_domains IS NULL OR q.domain = ANY (p_domains)
        GROUP BY 1, 2, 3
    ) w
    WHERE {schema}.is_handled(w.domain, w.type)
        AND NOT {schema}.is_handled(w.domain, w.type, w.priority)
    GROUP BY 1, 2;
END
$$;

-- Commands that wait and that no living node claims, by domain, type and reason: 'tags' or
-- 'priority'. While no type has tags and no node a band of priorities it reads nothing; else all of
-- ready and limited.
CREATE FUNCTION {schema}.count_unreachable()
RETURNS TABLE (domain text, type text, reason text, number bigint)
LANGUAGE sql STABLE SECURITY DEFINER
AS $$
    SELECT w.domain, w.type, w.reason, sum(w.number)::bigint
    FROM (
        SELECT q.domain, q.type, q.number,
            CASE WHEN {schema}.is_handled(q.domain, q.type) THEN 'priority'
                 WHEN {schema}.missing_tags(q.domain, q.type) IS NOT NULL THEN 'tags' END AS reason
        FROM (
            SELECT r.domain::text, r.type::text, r.priority::smallint, count(*) AS number
            FROM (
                SELECT domain, type, priority FROM {schema}.ready WHERE lease_until IS NULL
                UNION ALL
                SELECT domain, type, priority FROM {schema}.limited
            ) r
            WHERE EXISTS (SELECT FROM {schema}.type_tags)
                OR EXISTS (SELECT FROM {schema}.node WHERE priorities IS NOT NULL)
            GROUP BY 1, 2, 3
        ) q
        WHERE NOT {schema}.is_handled(q.domain, q.type, q.priority)
    ) w
    WHERE w.reason IS NOT NULL
    GROUP BY 1, 2, 3
    ORDER BY 4 DESC, 1, 2, 3 LIMIT 1000
$$;
