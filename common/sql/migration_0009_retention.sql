-- Removes history that is older than its domain wants to keep it, with the ids and events
-- that belong to it; says how much: whoever calls comes again until it is nothing.
-- A day that nobody wants any more is dropped as a whole, which takes a lock that waits
-- behind any reader, and every settle behind it: so after 100 ms it is left for later. What
-- single domains keep for a shorter time is deleted, p_count rows at once. Belongs to the
-- owner, so that a worker's role need not own tables.
CREATE FUNCTION {schema}.retain(p_count integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET timezone = 'UTC'
AS $$
DECLARE
    longest interval := greatest(interval '7 days', (SELECT max(keep) FROM {schema}.domain));
    partition text;
    removed bigint;
BEGIN
    SELECT c.relname INTO partition
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = '{schema}.finished'::regclass
        -- CASE, as the planner may look at other relations' names before it joins.
        AND CASE WHEN c.relname ~ '^finished_[0-9]{8}$'
            THEN to_date(right(c.relname, 8), 'YYYYMMDD') + 1 END <= clock_timestamp() - longest
    ORDER BY c.relname
    LIMIT 1;
    IF partition IS NOT NULL THEN
        BEGIN
            EXECUTE format('DELETE FROM {schema}.identity i USING {schema}.%I p
                WHERE i.domain = p.domain AND i.command_id = p.command_id', partition);
            EXECUTE format('DELETE FROM {schema}.event e USING {schema}.%I p
                WHERE e.domain = p.domain AND e.command_id = p.command_id', partition);
            EXECUTE format('DROP TABLE {schema}.%I', partition);
            RETURN 1;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    WITH old AS MATERIALIZED (
        SELECT f.domain, f.command_id, f.finished_at
        FROM {schema}.domain d JOIN {schema}.finished f ON f.domain = d.name
        WHERE d.keep < longest AND f.finished_at <= clock_timestamp() - d.keep
        LIMIT p_count
        FOR UPDATE OF f SKIP LOCKED
    ), gone AS (
        DELETE FROM {schema}.finished f USING old o
        WHERE f.domain = o.domain AND f.command_id = o.command_id AND f.finished_at = o.finished_at
        RETURNING f.domain, f.command_id
    ), identities AS (
        DELETE FROM {schema}.identity i USING gone g
        WHERE i.domain = g.domain AND i.command_id = g.command_id
    ), events AS (
        DELETE FROM {schema}.event e USING gone g
        WHERE e.domain = g.domain AND e.command_id = g.command_id
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN removed;
END
$$;
