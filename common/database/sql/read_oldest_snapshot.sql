-- Since how many seconds the oldest transaction lasts that keeps this database from removing
-- dead rows, as far as this role may see: those of others only as pg_monitor.
SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - began)), 0)::float8
FROM (
    SELECT xact_start AS began FROM pg_stat_activity
    WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
        AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
) open;
