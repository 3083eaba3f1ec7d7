-- What the charts of operators are drawn from: rings of rollups, which stewards write once a
-- minute. The last hour is kept by minute, the last day by ten minutes, the last week by hour; a
-- ring never grows beyond 200 domains a period.

-- What ended in a period, and what was waiting in it. Writing changes no indexed column.
CREATE TABLE {schema}.rollup (
    -- Minutes of a period.
    resolution smallint NOT NULL,
    -- The number of the period, modulo the size of the ring; see rollup_slots.
    slot smallint NOT NULL,
    -- Empty: all domains together.
    domain text COLLATE "C" NOT NULL,
    -- The beginning of the period.
    at timestamptz NOT NULL,
    -- Executions that ended, in the order of rollups.py: by outcome, and in histograms of how long
    -- they waited and ran.
    figures bigint[] NOT NULL,
    -- Samples of the numbers of commands; NULL if there was none in the period. The most of all:
    waiting bigint,
    oldest_age double precision,
    -- Of the latest:
    limited bigint,
    later bigint,
    running bigint,
    in_trouble bigint,
    -- All but those in troubleshooting. What arrived in a period is what ended in it and what this
    -- has grown by.
    unfinished bigint,
    PRIMARY KEY (resolution, slot, domain)
) WITH (fillfactor = 50);

-- What each node has counted since its start up to its latest rollup: the next one adds what has
-- come since, also that of the steward's successor, and a repeated one adds nothing.
CREATE TABLE {schema}.rollup_source (
    -- As in incarnation.
    node bigint PRIMARY KEY,
    written_at timestamptz NOT NULL,
    domains text[] COLLATE "C" NOT NULL,
    -- One after the other.
    figures bigint[] NOT NULL
) WITH (fillfactor = 50);

-- When commands were last counted, and in how many seconds. One row, which all writers of rollups
-- lock first.
CREATE TABLE {schema}.depth_sample (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    sampled_at timestamptz NOT NULL,
    seconds double precision NOT NULL
);

-- How many commands of a domain are where.
CREATE TYPE {schema}.depth AS (
    domain text, waiting bigint, limited bigint, later bigint, running bigint, in_trouble bigint,
    unfinished bigint, oldest_age double precision
);
REVOKE USAGE ON TYPE {schema}.depth FROM PUBLIC;

-- The slots of a time, in each ring: as many as it shows, and two.
CREATE FUNCTION {schema}.rollup_slots(p_at timestamptz)
RETURNS TABLE (resolution smallint, slot smallint, at timestamptz)
LANGUAGE sql STABLE
AS $$
    SELECT r.resolution::smallint, (r.period % r.size)::smallint,
        to_timestamp((r.period * 60 * r.resolution)::double precision)
    FROM (
        SELECT v.resolution, v.size,
            floor(extract(epoch FROM p_at)::double precision / (60 * v.resolution))::bigint
                AS period
        FROM (VALUES (1, 62), (10, 146), (60, 170)) v (resolution, size)
    ) r
    ORDER BY r.resolution
$$;

CREATE FUNCTION {schema}.add_figures(p_figures bigint[], p_others bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_agg(coalesce(f.own, 0) + coalesce(f.other, 0) ORDER BY f.nth)
    FROM unnest(p_figures, p_others) WITH ORDINALITY f (own, other, nth)
$$;

-- What has come since p_before; less is another beginning.
CREATE FUNCTION {schema}.new_figures(p_figures bigint[], p_before bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_agg(CASE WHEN f.own >= f.before THEN f.own - f.before ELSE f.own END
                     ORDER BY f.nth)
    FROM unnest(p_figures, p_before) WITH ORDINALITY f (own, before, nth)
$$;

-- The domains of those given that have a row in this period or for which there is room, in their
-- order, and all domains together.
CREATE FUNCTION {schema}.fitting_domains(
    p_resolution smallint, p_slot smallint, p_domains text[]
) RETURNS text[]
LANGUAGE sql STABLE
AS $$
    WITH own AS (
        SELECT r.domain FROM {schema}.rollup r
        WHERE r.resolution = p_resolution AND r.slot = p_slot
    ), added AS (
        SELECT d.domain FROM unnest(p_domains) WITH ORDINALITY d (domain, nth)
        WHERE d.domain NOT IN (SELECT o.domain FROM own o)
        ORDER BY d.domain <> '', d.nth
        LIMIT greatest(0, 201 - (SELECT count(*) FROM own))
    )
    SELECT array_agg(f.domain)
    FROM (SELECT o.domain FROM own o WHERE o.domain = ANY (p_domains)
          UNION ALL SELECT a.domain FROM added a) f
$$;

-- Makes room for the period of each ring that p_at lies in, and keeps all other writers waiting
-- until the transaction ends. Returns the latest sample.
CREATE FUNCTION {schema}.turn_rollups(p_at timestamptz) RETURNS {schema}.depth_sample
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    sample {schema}.depth_sample;
BEGIN
    INSERT INTO {schema}.depth_sample AS d (sampled_at, seconds) VALUES ('-infinity', 0)
    ON CONFLICT (one) DO UPDATE SET seconds = d.seconds
    RETURNING * INTO sample;
    DELETE FROM {schema}.rollup r USING {schema}.rollup_slots(p_at) s
    WHERE r.resolution = s.resolution AND r.slot = s.slot AND r.at < s.at;
    RETURN sample;
END
$$;

-- Adds to the rollups what p_node has counted since it last did, in the minute that has just ended.
-- p_age: seconds since the node began to count. The first of p_domains is empty, for all of them,
-- and p_figures are theirs, one after the other. Returns whether the caller is to sample depths:
-- one node a minute, and more rarely where that takes p_limit seconds or, at the last time, more
-- than half a second.
CREATE FUNCTION {schema}.record_minute(
    p_node bigint, p_age double precision, p_domains text[], p_figures bigint[],
    p_limit double precision, p_now timestamptz
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    present constant timestamptz := coalesce(p_now, clock_timestamp());
    minute constant timestamptz := present - interval '30 seconds';
    width constant integer := cardinality(p_figures) / cardinality(p_domains);
    -- A node that has counted for longer, and of which nothing is known, has written before.
    is_known boolean := p_age < 300;
    domains text[] := '{}';
    figures bigint[] := '{}';
    own bigint[];
    nth integer;
    source {schema}.rollup_source;
    sample {schema}.depth_sample;
BEGIN
    sample := {schema}.turn_rollups(minute);
    SELECT r.* INTO source FROM {schema}.rollup_source r WHERE r.node = p_node;
    IF FOUND AND source.written_at >= present - make_interval(secs => p_age) THEN
        is_known := true;
    ELSE
        source.domains := '{}';
    END IF;
    IF is_known THEN
        FOR i IN 1 .. cardinality(p_domains) LOOP
            own := p_figures[width * (i - 1) + 1 : width * i];
            nth := array_position(source.domains, p_domains[i]);
            IF nth IS NOT NULL THEN
                own := {schema}.new_figures(
                    own, source.figures[width * (nth - 1) + 1 : width * nth]);
            END IF;
            -- All domains together have a row in each minute in which a node lives.
            IF i = 1 OR 0 <> ANY (own) THEN
                domains := domains || p_domains[i];
                figures := figures || own;
            END IF;
        END LOOP;
        WITH rings AS MATERIALIZED (
            SELECT s.*, {schema}.fitting_domains(s.resolution, s.slot, domains) AS fitting
            FROM {schema}.rollup_slots(minute) s
        )
        INSERT INTO {schema}.rollup AS r (resolution, slot, domain, at, figures)
        SELECT s.resolution, s.slot, d.domain, s.at,
            figures[width * (d.nth - 1) + 1 : width * d.nth]
        FROM rings s, unnest(domains) WITH ORDINALITY d (domain, nth)
        WHERE d.domain = ANY (s.fitting)
        ON CONFLICT (resolution, slot, domain) DO UPDATE
            SET figures = {schema}.add_figures(r.figures, EXCLUDED.figures)
            WHERE r.at = EXCLUDED.at;
    END IF;
    INSERT INTO {schema}.rollup_source AS r (node, written_at, domains, figures)
    VALUES (p_node, present, p_domains, p_figures)
    ON CONFLICT (node) DO UPDATE SET written_at = EXCLUDED.written_at,
        domains = EXCLUDED.domains, figures = EXCLUDED.figures;
    IF source.node IS NULL THEN
        DELETE FROM {schema}.rollup_source r WHERE r.written_at < present - interval '1 hour';
    END IF;
    IF present < sample.sampled_at + make_interval(secs => greatest(50, 120 * sample.seconds))
        AND present >= sample.sampled_at
    THEN
        RETURN false;
    END IF;
    -- As if the limit had ended it.
    UPDATE {schema}.depth_sample d SET sampled_at = present, seconds = p_limit;
    RETURN true;
END
$$;

-- Counts the commands that are not over, of the 200 domains with the most of them and of all
-- together, and writes that into the rollups of the minute that has just ended. Reads all of ready,
-- scheduled, limited and troubleshooting.
CREATE FUNCTION {schema}.sample_depths(p_now timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    began constant timestamptz := clock_timestamp();
    present constant timestamptz := coalesce(p_now, began);
    minute constant timestamptz := present - interval '30 seconds';
    counts {schema}.depth[];
    names text[];
BEGIN
    WITH found AS (
        SELECT r.domain::text, count(*) FILTER (WHERE r.claimable) AS waiting, 0 AS limited,
            0 AS later, count(*) FILTER (WHERE NOT r.claimable) AS running, 0 AS in_trouble,
            min(r.since) FILTER (WHERE r.claimable) AS oldest
        FROM (SELECT x.domain, coalesce(x.due_at, x.created_at) AS since,
                  x.lease_until IS NULL OR x.lease_until <= began AS claimable
              FROM {schema}.ready x) r
        GROUP BY r.domain
        UNION ALL
        SELECT l.domain, 0, count(*), 0, 0, 0, min(coalesce(l.due_at, l.created_at))
        FROM {schema}.limited l GROUP BY l.domain
        UNION ALL
        SELECT s.domain, 0, 0, count(*), 0, 0, NULL FROM {schema}.scheduled s GROUP BY s.domain
        UNION ALL
        SELECT t.domain, 0, 0, 0, 0, count(*), NULL
        FROM {schema}.troubleshooting t GROUP BY t.domain
    ), summed AS (
        SELECT coalesce(f.domain, '') AS domain, coalesce(sum(f.waiting), 0)::bigint AS waiting,
            coalesce(sum(f.limited), 0)::bigint AS limited,
            coalesce(sum(f.later), 0)::bigint AS later,
            coalesce(sum(f.running), 0)::bigint AS running,
            coalesce(sum(f.in_trouble), 0)::bigint AS in_trouble,
            coalesce(greatest(0, extract(epoch FROM began - min(f.oldest))), 0)::double precision
                AS oldest_age
        FROM found f
        GROUP BY ROLLUP (f.domain)
    ), most AS (
        SELECT s.*, s.waiting + s.limited + s.later + s.running AS unfinished
        FROM summed s
        ORDER BY s.domain <> '', s.waiting + s.limited + s.later + s.running + s.in_trouble DESC
        LIMIT 201
    )
    SELECT array_agg(ROW(m.domain, m.waiting, m.limited, m.later, m.running, m.in_trouble,
                         m.unfinished, m.oldest_age)::{schema}.depth), array_agg(m.domain)
    INTO counts, names
    FROM most m;
    PERFORM {schema}.turn_rollups(minute);
    -- Domains of a period in which nothing waits any longer.
    UPDATE {schema}.rollup r
    SET limited = 0, later = 0, running = 0, in_trouble = 0, unfinished = 0
    FROM {schema}.rollup_slots(minute) s
    WHERE r.resolution = s.resolution AND r.slot = s.slot AND r.at = s.at
        AND r.unfinished + r.in_trouble > 0 AND r.domain <> ALL (names);
    WITH rings AS MATERIALIZED (
        SELECT s.*, {schema}.fitting_domains(s.resolution, s.slot, names) AS fitting
        FROM {schema}.rollup_slots(minute) s
    )
    INSERT INTO {schema}.rollup AS r (resolution, slot, domain, at, figures, waiting, oldest_age,
        limited, later, running, in_trouble, unfinished)
    SELECT s.resolution, s.slot, c.domain, s.at, '{}', c.waiting, c.oldest_age,
        c.limited, c.later, c.running, c.in_trouble, c.unfinished
    FROM rings s, unnest(counts) c
    WHERE c.domain = ANY (s.fitting)
    ON CONFLICT (resolution, slot, domain) DO UPDATE SET
        waiting = greatest(r.waiting, EXCLUDED.waiting),
        oldest_age = greatest(r.oldest_age, EXCLUDED.oldest_age),
        limited = EXCLUDED.limited, later = EXCLUDED.later, running = EXCLUDED.running,
        in_trouble = EXCLUDED.in_trouble, unfinished = EXCLUDED.unfinished
        WHERE r.at = EXCLUDED.at;
    UPDATE {schema}.depth_sample d
    SET seconds = extract(epoch FROM clock_timestamp() - began)::double precision;
END
$$;
