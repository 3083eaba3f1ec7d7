-- Makes the partitions of finished for today and the days ahead that are
-- missing; says how many. Belongs to the owner, so that a worker's role need not
-- own tables. A new partition is attached, which runs beside any reader; CREATE
-- ... PARTITION OF would wait behind a report, and every settle behind that. For
-- the same reason it gives up after 100 ms: whoever calls comes again.
CREATE FUNCTION {schema}.make_partitions(p_days_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '100ms'
SET timezone = 'UTC'
AS $$
DECLARE
    made integer := 0;
    day date;
    partition text;
BEGIN
    LOCK TABLE {schema}.finished IN SHARE UPDATE EXCLUSIVE MODE;
    FOR n IN 0 .. p_days_ahead LOOP
        day := clock_timestamp()::date + n;
        partition := 'finished_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('{schema}.' || partition) IS NOT NULL;
        EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.finished INCLUDING ALL)', partition);
        EXECUTE format('ALTER TABLE {schema}.finished ATTACH PARTITION {schema}.%I'
                       ' FOR VALUES FROM (%L) TO (%L)',
                       partition, day::timestamptz, (day + 1)::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

-- For functions that write history with the owner's rights: there is a partition to write to,
-- also where no fleet has run for the two weeks for which it makes them ahead.
CREATE FUNCTION {schema}.ensure_partition() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF to_regclass('{schema}.finished_'
                   || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NULL
    THEN
        PERFORM {schema}.make_partitions(1);
    END IF;
END
$$;
