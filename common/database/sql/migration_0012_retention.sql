-- Removes history that is older than its domain keeps it, with the ids and events that belong
-- to it, in statements of a bounded size. The functions belong to the owner, so that a
-- worker's role need not own tables; they refuse to remove history that is younger.

-- How far the ids and events of a day's commands are removed, in blocks of its table. Each block
-- is visited once, whichever steward does it: an id that is not taken any longer may be sent again,
-- and then belongs to another command.
CREATE TABLE {schema}.removal (
    name text PRIMARY KEY,
    block bigint NOT NULL DEFAULT 0
);

-- A day that no domain keeps any longer is dropped as a whole. The first call detaches it, which
-- takes a lock that waits behind any reader, and every settle behind that: so it gives up after
-- 100 ms, and does nothing else while it has that lock. The others remove the ids and events of
-- its commands, p_blocks of the table in each. True: the table is dropped.
CREATE FUNCTION {schema}.retain_day(p_partition text, p_blocks integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET timezone = 'UTC'
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    partition regclass;
    began bigint;
    day date := CASE WHEN p_partition ~ '^finished_[0-9]{8}$'
        THEN to_date(right(p_partition, 8), 'YYYYMMDD') END;
BEGIN
    IF day IS NULL OR day + 1 > clock_timestamp()
            - greatest(interval '7 days', (SELECT max(d.keep) FROM {schema}.domain d))
    THEN
        RAISE invalid_parameter_value USING MESSAGE = 'no old day of history: ' || p_partition;
    END IF;
    partition := to_regclass(format('{schema}.%I', p_partition));
    IF partition IS NULL THEN
        RETURN true;
    END IF;
    IF EXISTS (SELECT FROM pg_inherits WHERE inhrelid = partition) THEN
        EXECUTE format('ALTER TABLE {schema}.finished DETACH PARTITION {schema}.%I', p_partition);
        RETURN false;
    END IF;
    INSERT INTO {schema}.removal (name) VALUES (p_partition) ON CONFLICT DO NOTHING;
    UPDATE {schema}.removal SET block = block + p_blocks WHERE name = p_partition
    RETURNING block - p_blocks INTO began;
    IF began >= pg_relation_size(partition) / current_setting('block_size')::bigint THEN
        EXECUTE format('DROP TABLE {schema}.%I', p_partition);
        DELETE FROM {schema}.removal WHERE name = p_partition;
        RETURN true;
    END IF;
    EXECUTE format('
        WITH old AS MATERIALIZED (
            SELECT f.domain, f.command_id FROM {schema}.%I f WHERE f.ctid >= $1 AND f.ctid < $2
        ), identities AS (
            DELETE FROM {schema}.identity i USING old o
            WHERE i.domain = o.domain AND i.command_id = o.command_id
        )
        DELETE FROM {schema}.event e USING old o
        WHERE e.domain = o.domain AND e.command_id = o.command_id AND e.at < $3', p_partition)
    -- An id that the bus made was never taken: it may belong to a new command already.
    USING format('(%s,0)', began)::tid, format('(%s,0)', began + p_blocks)::tid,
        (day + 2)::timestamptz;
    RETURN false;
END
$$;

-- Whether the caller is to sweep a domain, which it is if no steward has begun to within the
-- last p_seconds: of many stewards one does. A time in the future is one of another server.
CREATE FUNCTION {schema}.begin_sweep(p_domain text, p_seconds double precision) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH due AS MATERIALIZED (
        SELECT d.name FROM {schema}.domain d
        WHERE d.name = p_domain
            AND (d.swept_at > clock_timestamp()
                OR d.swept_at <= clock_timestamp() - make_interval(secs => p_seconds)) IS NOT FALSE
        FOR UPDATE SKIP LOCKED
    ), begun AS (
        UPDATE {schema}.domain d SET swept_at = clock_timestamp() FROM due
        WHERE d.name = due.name RETURNING 1
    )
    SELECT EXISTS (SELECT FROM begun)
$$;

-- What a domain keeps for a shorter time than others is deleted from a day, up to p_count
-- commands; returns how many. Rows that another session has locked are left for later.
CREATE FUNCTION {schema}.retain_domain(
    p_partition text, p_domain text, p_count integer
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET jit = off
AS $$
DECLARE
    before timestamptz := (
        SELECT clock_timestamp() - d.keep FROM {schema}.domain d WHERE d.name = p_domain);
    removed bigint;
BEGIN
    IF p_partition !~ '^finished_[0-9]{8}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'not a day of history: ' || p_partition;
    END IF;
    EXECUTE format('
        WITH old AS MATERIALIZED (
            SELECT f.domain, f.command_id, f.finished_at FROM {schema}.%1$I f
            WHERE f.domain = $1 AND f.finished_at <= $2
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {schema}.%1$I f USING old o
            WHERE f.domain = o.domain AND f.command_id = o.command_id
                AND f.finished_at = o.finished_at
            RETURNING f.domain, f.command_id
        ), identities AS (
            DELETE FROM {schema}.identity i USING gone g
            WHERE i.domain = g.domain AND i.command_id = g.command_id
        ), events AS (
            DELETE FROM {schema}.event e USING gone g
            WHERE e.domain = g.domain AND e.command_id = g.command_id
        )
        SELECT count(*) FROM gone', p_partition)
    INTO removed USING p_domain, before, p_count;
    RETURN removed;
END
$$;

-- Removes the incarnations that nothing shows any longer: last seen alive before the oldest history
-- that is kept, and the latest claimer of no command that is not finished. p_living are those that
-- have sessions now. Returns how many.
CREATE FUNCTION {schema}.retain_incarnations(p_living bigint[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET jit = off
AS $$
DECLARE
    oldest timestamptz := clock_timestamp()
        - greatest(interval '7 days', (SELECT max(d.keep) FROM {schema}.domain d));
    old bigint[];
    removed bigint;
BEGIN
    UPDATE {schema}.incarnation i SET seen_at = clock_timestamp()
    FROM (SELECT l.id FROM {schema}.incarnation l WHERE l.id = ANY (p_living)
          FOR NO KEY UPDATE SKIP LOCKED) living
    WHERE i.id = living.id;
    -- The largest table last, and only if there is a reason to read it.
    old := ARRAY(
        SELECT i.id FROM {schema}.incarnation i
        WHERE i.seen_at < oldest
            AND NOT EXISTS (SELECT FROM {schema}.troubleshooting t WHERE t.claimer = i.id)
            AND NOT EXISTS (SELECT FROM {schema}.scheduled s WHERE s.claimer = i.id));
    IF cardinality(old) = 0 THEN
        RETURN 0;
    END IF;
    DELETE FROM {schema}.incarnation i
    WHERE i.id = ANY (old) AND NOT EXISTS (
        SELECT FROM {schema}.ready r WHERE r.claimer = i.id);
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;

-- Removes all but the latest 1,000 events of each domain itself; returns how many.
CREATE FUNCTION {schema}.retain_domain_events() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET jit = off
AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM {schema}.domain_event e
    USING {schema}.domain d, LATERAL (
        SELECT x.id FROM {schema}.domain_event x WHERE x.domain = d.name
        ORDER BY x.id DESC OFFSET 1000 LIMIT 1) last
    WHERE e.domain = d.name AND e.id <= last.id;
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
