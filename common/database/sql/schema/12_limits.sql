-- Limits: how many commands run at once, how many start in a time, and in which order. Registries
-- declare them, and operators set options of them, which win. What is in force follows from both.

-- The limits in force. The name is 'domain type' for a handler's own limit, which counts by key, or
-- else that of a shared one.
CREATE TABLE {schema}.limit_in_force (
    name text COLLATE "C" PRIMARY KEY CHECK (
        length(name) <= 201
        AND name ~ '^[A-Za-z][A-Za-z0-9_.:-]*( [A-Za-z][A-Za-z0-9_.:-]*)?$'),
    -- 1 if ordered.
    concurrency integer CHECK (concurrency > 0),
    -- NULL: no rate, and no burst.
    starts_per_second double precision
        CHECK (starts_per_second > 0 AND starts_per_second <= 1000000000),
    burst integer CHECK (burst > 0),
    ordered boolean NOT NULL DEFAULT false,
    on_trouble text COLLATE "C" NOT NULL DEFAULT 'block' CHECK (on_trouble IN ('block', 'skip')),
    fair boolean NOT NULL DEFAULT false,
    per_node boolean NOT NULL DEFAULT false
);

-- The limits that are in force for a type; the type '' is that of each type of the domain that has
-- no row of its own. A domain that is here has a row in domain, too.
CREATE TABLE {schema}.limited_type (
    domain text COLLATE "C",
    type text COLLATE "C",
    -- Names of limits in force.
    own text COLLATE "C",
    shared text[] COLLATE "C" NOT NULL,
    PRIMARY KEY (domain, type)
);

-- What registries declare. Without a burst it is what the rate allows in a second, at least 1.
CREATE TABLE {schema}.limit_declared (
    LIKE {schema}.limit_in_force INCLUDING CONSTRAINTS INCLUDING DEFAULTS,
    app text COLLATE "C" NOT NULL,
    -- The types of a shared limit, as 'domain type', and the domains, for all of their types.
    covers text[] COLLATE "C" NOT NULL DEFAULT '{}',
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name, app)
);

-- What operators have set.
CREATE TABLE {schema}.limit_set (
    LIKE {schema}.limit_in_force INCLUDING CONSTRAINTS INCLUDING DEFAULTS,
    -- The columns that are set; of the others the declared value holds.
    given text[] COLLATE "C" NOT NULL,
    operator text,
    reason text,
    set_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (name)
);

-- Has one row, which every change of limits updates first: so changes wait for each other, and one
-- whose snapshot is older than another change fails.
CREATE TABLE {schema}.limit_change (
    is_latest boolean PRIMARY KEY DEFAULT true CHECK (is_latest),
    number bigint NOT NULL
);
INSERT INTO {schema}.limit_change (number) VALUES (0);

-- Its number is raised by every change of the limits in force, before that is committed; see
-- committed_limits.
CREATE SEQUENCE {schema}.limits MINVALUE 0;
SELECT pg_catalog.setval('{schema}.limits', 0::bigint);

-- The number of the limits in force that the transaction's next statement reads, or later ones;
-- NULL while a change is not committed.
CREATE FUNCTION {schema}.committed_limits() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    PERFORM FROM {schema}.limit_change FOR SHARE NOWAIT;
    RETURN (SELECT last_value FROM {schema}.limits);
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END
$$;

-- The latest declaration of each limit.
CREATE FUNCTION {schema}.latest_limits() RETURNS SETOF {schema}.limit_declared
LANGUAGE sql STABLE
AS $$
    SELECT DISTINCT ON (d.name) d.*
    FROM {schema}.limit_declared d
    ORDER BY d.name, d.declared_at DESC, d.app
$$;

-- The limits that should be in force: what is set, else the latest declaration.
CREATE FUNCTION {schema}.limits_in_effect() RETURNS SETOF {schema}.limit_in_force
LANGUAGE sql STABLE
AS $$
    SELECT m.name, CASE WHEN m.ordered THEN 1 ELSE m.concurrency END, m.starts_per_second,
        CASE WHEN m.starts_per_second IS NOT NULL
             THEN coalesce(m.burst, greatest(1, floor(m.starts_per_second)::integer)) END,
        m.ordered, m.on_trouble, m.fair, m.per_node
    FROM (
        SELECT coalesce(s.name, d.name) AS name,
            CASE WHEN 'concurrency' = ANY (s.given) THEN s.concurrency ELSE d.concurrency END
                AS concurrency,
            CASE WHEN 'starts_per_second' = ANY (s.given) THEN s.starts_per_second
                 ELSE d.starts_per_second END AS starts_per_second,
            CASE WHEN 'burst' = ANY (s.given) THEN s.burst ELSE d.burst END AS burst,
            CASE WHEN 'ordered' = ANY (s.given) THEN s.ordered
                 ELSE coalesce(d.ordered, false) END AS ordered,
            CASE WHEN 'on_trouble' = ANY (s.given) THEN s.on_trouble
                 ELSE coalesce(d.on_trouble, 'block') END AS on_trouble,
            CASE WHEN 'fair' = ANY (s.given) THEN s.fair ELSE coalesce(d.fair, false) END AS fair,
            coalesce(d.per_node, false) AS per_node
        FROM {schema}.latest_limits() d
        FULL JOIN {schema}.limit_set s ON s.name = d.name
    ) m
    WHERE m.concurrency IS NOT NULL OR m.starts_per_second IS NOT NULL OR m.ordered OR m.fair
$$;

-- Whether the limits of a domain hold for this type: not for replies and for the commands of
-- process managers, which would wait for those that wait for them.
CREATE FUNCTION {schema}.has_limits_of_domain(p_type text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN p_type <> 'Reply' AND p_type NOT LIKE 'process:%';

-- The types and domains for which something is in force.
CREATE FUNCTION {schema}.types_in_effect() RETURNS SETOF {schema}.limited_type
LANGUAGE sql STABLE
AS $$
    WITH covered AS (
        SELECT split_part(f.name, ' ', 1) AS domain, split_part(f.name, ' ', 2) AS type,
            f.name AS own, NULL AS shared
        FROM {schema}.limit_in_force f WHERE strpos(f.name, ' ') > 0
        UNION ALL
        SELECT split_part(c, ' ', 1), split_part(c, ' ', 2), NULL, d.name
        FROM {schema}.limit_in_force f JOIN {schema}.limit_declared d ON d.name = f.name,
            unnest(d.covers) c
    )
    SELECT t.domain, t.type, max(c.own),
        coalesce(array_agg(DISTINCT c.shared ORDER BY c.shared) FILTER (WHERE c.shared IS NOT NULL),
                 '{}')
    FROM (SELECT DISTINCT domain, type FROM covered) t
    JOIN covered c ON c.domain = t.domain
        AND (c.type = t.type OR c.type = '' AND {schema}.has_limits_of_domain(t.type))
    GROUP BY t.domain, t.type
$$;

-- Also where a restore has lost the row.
CREATE FUNCTION {schema}.begin_limit_change() RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO {schema}.limit_change AS c (number) VALUES (1)
    ON CONFLICT (is_latest) DO UPDATE SET number = c.number + 1
$$;

-- Whether limits are in force and their number says that there was never one: logical replication
-- copies no sequences.
CREATE FUNCTION {schema}.lacks_number() RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT (SELECT last_value FROM {schema}.limits) = 0
        AND EXISTS (SELECT FROM {schema}.limit_in_force)
$$;

-- Puts in force what is declared and set; called after begin_limit_change.
CREATE FUNCTION {schema}.put_limits_in_force() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    changes bigint := 0;
    affected bigint;
BEGIN
    DELETE FROM {schema}.limit_in_force f
    WHERE NOT EXISTS (SELECT FROM {schema}.limits_in_effect() e WHERE e.name = f.name);
    GET DIAGNOSTICS affected = ROW_COUNT;
    changes := changes + affected;
    INSERT INTO {schema}.limit_in_force AS f
    SELECT e.* FROM {schema}.limits_in_effect() e
    LEFT JOIN {schema}.limit_in_force p ON p.name = e.name
    WHERE p IS DISTINCT FROM e
    ON CONFLICT (name) DO UPDATE SET
        concurrency = EXCLUDED.concurrency, starts_per_second = EXCLUDED.starts_per_second,
        burst = EXCLUDED.burst, ordered = EXCLUDED.ordered, on_trouble = EXCLUDED.on_trouble,
        fair = EXCLUDED.fair, per_node = EXCLUDED.per_node;
    GET DIAGNOSTICS affected = ROW_COUNT;
    changes := changes + affected;
    DELETE FROM {schema}.limited_type t
    WHERE NOT EXISTS (SELECT FROM {schema}.types_in_effect() e
                      WHERE e.domain = t.domain AND e.type = t.type);
    GET DIAGNOSTICS affected = ROW_COUNT;
    changes := changes + affected;
    INSERT INTO {schema}.limited_type AS t
    SELECT e.* FROM {schema}.types_in_effect() e
    LEFT JOIN {schema}.limited_type p ON p.domain = e.domain AND p.type = e.type
    WHERE p IS DISTINCT FROM e
    ON CONFLICT (domain, type) DO UPDATE SET own = EXCLUDED.own, shared = EXCLUDED.shared;
    GET DIAGNOSTICS affected = ROW_COUNT;
    changes := changes + affected;
    IF changes = 0 AND NOT {schema}.lacks_number() THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.domain (name)
    SELECT DISTINCT domain FROM {schema}.limited_type ORDER BY domain
    ON CONFLICT (name) DO NOTHING;
    -- By the clock, because a server that was restored to an earlier point would give a number
    -- again.
    PERFORM setval('{schema}.limits', greatest(
        (SELECT last_value FROM {schema}.limits) + 1,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint));
    PERFORM {schema}.limits_changed();
END
$$;

-- Whether a node that lives has a handler for one of these types, given as 'domain type', or for
-- any of these domains.
CREATE FUNCTION {schema}.runs_any_of(p_covers text[]) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.living_nodes() n, unnest(n.types) t
        WHERE t = ANY (p_covers) OR split_part(t, ' ', 1) = ANY (p_covers))
$$;

-- A declaration as JSON, without its name, app and time.
CREATE FUNCTION {schema}.limit_declaration(p_declared {schema}.limit_declared) RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT to_jsonb(p_declared) - '{name,app,declared_at}'::text[]
$$;

-- Makes p_limits, an array of objects with the columns of limit_declared, all that an app declares;
-- one that declares nothing, and declared nothing before, writes nothing. Returns what it has
-- changed of the limits of nodes that live; after is NULL if a limit is no longer declared.
CREATE FUNCTION {schema}.declare_limits(
    p_app text, p_limits json, OUT name text, OUT before jsonb, OUT after jsonb
) RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    earlier {schema}.limit_declared[];
BEGIN
    IF json_array_length(p_limits) = 0
        AND NOT EXISTS (SELECT FROM {schema}.limit_declared d WHERE d.app = p_app)
        AND NOT {schema}.lacks_number()
    THEN
        RETURN;
    END IF;
    PERFORM {schema}.begin_limit_change();
    earlier := ARRAY(SELECT d FROM {schema}.latest_limits() d);
    DELETE FROM {schema}.limit_declared d WHERE d.app = p_app;
    INSERT INTO {schema}.limit_declared (
        app, name, concurrency, starts_per_second, burst, ordered, on_trouble, fair, per_node,
        covers)
    SELECT p_app, l.name, l.concurrency, l.starts_per_second, l.burst, coalesce(l.ordered, false),
        coalesce(l.on_trouble, 'block'), coalesce(l.fair, false), coalesce(l.per_node, false),
        coalesce(l.covers, '{}')
    FROM json_populate_recordset(NULL::{schema}.limit_declared, p_limits) l;
    PERFORM {schema}.put_limits_in_force();
    RETURN QUERY
    SELECT e.name, {schema}.limit_declaration(e), CASE WHEN l.name IS NOT NULL
        THEN {schema}.limit_declaration(l) END
    FROM unnest(earlier) e
    LEFT JOIN {schema}.latest_limits() l ON l.name = e.name
    WHERE (l.name IS NULL OR {schema}.limit_declaration(e) <> {schema}.limit_declaration(l))
        AND {schema}.runs_any_of(e.name || e.covers)
    ORDER BY e.name;
END
$$;
