-- The days of history: made ahead, and removed with the ids and events that belong to them, in
-- statements of a bounded size. The functions run with the owner's rights, so that a worker's
-- role need not own tables; they refuse to remove history that is younger. They give up on a
-- lock after 100 ms, because every settlement would wait behind them; the caller tries again.

-- Makes the missing partitions of finished for today and the days ahead, and returns their
-- number. Locks nothing if none is missing. ATTACH PARTITION runs while others read; CREATE ...
-- PARTITION OF would wait behind a report, and every settlement behind that.
CREATE FUNCTION {schema}.make_partitions(p_days_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    made integer := 0;
    day date;
    partition text;
BEGIN
    IF NOT EXISTS (
        SELECT FROM generate_series(0, p_days_ahead) n
        WHERE to_regclass('{schema}.finished_'
                          || to_char(clock_timestamp()::date + n, 'YYYYMMDD')) IS NULL)
    THEN
        RETURN 0;
    END IF;
    LOCK TABLE {schema}.finished IN SHARE UPDATE EXCLUSIVE MODE;
    FOR n IN 0 .. p_days_ahead LOOP
        day := clock_timestamp()::date + n;
        partition := 'finished_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('{schema}.' || partition) IS NOT NULL;
        EXECUTE format(
            'CREATE TABLE {schema}.%I (LIKE {schema}.finished INCLUDING ALL)', partition);
        EXECUTE format('ALTER TABLE {schema}.finished ATTACH PARTITION {schema}.%I'
                       ' FOR VALUES FROM (%L) TO (%L)',
                       partition, day::timestamptz, (day + 1)::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

-- Makes today's partition if it is missing, as no fleet may have run for two weeks.
CREATE FUNCTION {schema}.ensure_partition() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF to_regclass('{schema}.finished_'
                   || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NULL
    THEN
        PERFORM {schema}.make_partitions(1);
    END IF;
END
$$;

-- Removes a day that no domain keeps any longer; repeated until it returns true. The first call
-- detaches the partition and does nothing else under that lock. The next ones remove the ids and
-- events of its commands, p_size blocks of the table in each, and the last one drops the table.
CREATE FUNCTION {schema}.retain_day(p_partition text, p_size integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
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
    UPDATE {schema}.removal SET block = block + p_size WHERE name = p_partition
    RETURNING block - p_size INTO began;
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
    -- Only events of that time: an id of the bus is not in identity, and a new command may have it.
    USING format('(%s,0)', began)::tid, format('(%s,0)', began + p_size)::tid,
        (day + 2)::timestamptz;
    RETURN false;
END
$$;

-- Whether the caller is to sweep a domain: true for one steward in p_seconds, whatever the clock
-- does, and NULL for the others. Skips a locked row.
CREATE FUNCTION {schema}.begin_sweep(p_domain text, p_seconds double precision) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
    UPDATE {schema}.domain SET swept_at = clock_timestamp()
    WHERE name = (
        SELECT d.name FROM {schema}.domain d
        WHERE d.name = p_domain
            AND (d.swept_at > clock_timestamp()
                OR d.swept_at <= clock_timestamp() - make_interval(secs => p_seconds)) IS NOT FALSE
        FOR UPDATE SKIP LOCKED)
    RETURNING true
$$;

-- Deletes from a day what a domain keeps for a shorter time than others, up to p_size commands,
-- and returns their number. Skips locked rows. Leaves what ended less than a minute ago, so that
-- a send that is repeated after its connection died finds its first try.
CREATE FUNCTION {schema}.retain_domain(
    p_partition text, p_domain text, p_size integer
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    before timestamptz := (
        SELECT clock_timestamp() - greatest(d.keep, interval '1 minute')
        FROM {schema}.domain d WHERE d.name = p_domain);
    removed bigint;
BEGIN
    IF p_partition !~ '^finished_[0-9]{8}$' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'not a day of history: ' || p_partition;
    END IF;
    EXECUTE format('
        WITH gone AS (
            DELETE FROM {schema}.%1$I WHERE ctid = ANY (ARRAY(
                SELECT f.ctid FROM {schema}.%1$I f
                WHERE f.domain = $1 AND f.finished_at <= $2
                LIMIT $3
                FOR UPDATE SKIP LOCKED))
            RETURNING domain, command_id
        ), identities AS (
            DELETE FROM {schema}.identity i USING gone g
            WHERE i.domain = g.domain AND i.command_id = g.command_id
        ), events AS (
            DELETE FROM {schema}.event e USING gone g
            WHERE e.domain = g.domain AND e.command_id = g.command_id
        )
        SELECT count(*) FROM gone', p_partition)
    INTO removed USING p_domain, before, p_size;
    RETURN removed;
END
$$;

-- Removes incarnations that were last seen before the oldest history and are the claimer of no
-- unfinished command, and returns their number; and from lease the claimers without claims.
-- p_living are those that have sessions now. Reads the largest tables, which may take long, before
-- it locks rows for which claims and new sessions of living workers wait.
CREATE FUNCTION {schema}.retain_incarnations(p_living bigint[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    oldest timestamptz := clock_timestamp()
        - greatest(interval '7 days', (SELECT max(d.keep) FROM {schema}.domain d));
    old bigint[];
    idle bigint[];
    removed bigint := 0;
BEGIN
    -- ready, the largest table, is read last, and only for these.
    old := ARRAY(
        SELECT i.id FROM {schema}.incarnation i
        WHERE i.seen_at < oldest AND i.id <> ALL (p_living)
            AND NOT EXISTS (SELECT FROM {schema}.troubleshooting t WHERE t.claimer = i.id)
            AND NOT EXISTS (SELECT FROM {schema}.scheduled s WHERE s.claimer = i.id)
            AND NOT EXISTS (SELECT FROM {schema}.limited l WHERE l.claimer = i.id));
    IF cardinality(old) > 0 THEN
        DELETE FROM {schema}.incarnation i
        WHERE i.id = ANY (old) AND NOT EXISTS (
            SELECT FROM {schema}.ready r WHERE r.claimer = i.id);
        GET DIAGNOSTICS removed = ROW_COUNT;
    END IF;
    idle := ARRAY(
        SELECT l.claimer FROM {schema}.lease l
        WHERE l.ends_at < clock_timestamp() - 2 * l.length
            AND NOT EXISTS (SELECT FROM {schema}.ready r WHERE r.claimer = l.claimer));
    DELETE FROM {schema}.lease l
    USING (SELECT k.claimer FROM {schema}.lease k
           WHERE k.claimer = ANY (idle) AND k.ends_at < clock_timestamp() - 2 * k.length
           FOR UPDATE SKIP LOCKED) unused
    WHERE l.claimer = unused.claimer;
    UPDATE {schema}.incarnation i SET seen_at = clock_timestamp()
    FROM (SELECT l.id FROM {schema}.incarnation l WHERE l.id = ANY (p_living)
          FOR NO KEY UPDATE SKIP LOCKED) living
    WHERE i.id = living.id;
    RETURN removed;
END
$$;

-- Removes all but the latest 1,000 events of each domain.
CREATE FUNCTION {schema}.retain_domain_events() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
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
