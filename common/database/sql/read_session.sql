-- What a session executes, and which sessions it waits for. The last statement of an idle
-- session is the bus's, and so is what opens and settles a handler's transaction. A prepared
-- transaction that blocks has no process: its number is 0.
SELECT
    CASE
        WHEN s.state <> 'idle' AND s.query NOT LIKE '%%cmdbus.transaction%%'
        THEN s.state || ': ' || s.query
    END,
    ARRAY(
        SELECT CASE
            WHEN b.pid IS NULL THEN 'a prepared transaction'
            ELSE format(
                'pid %%s (%%s, role %%s, %%s, transaction of %%s s): %%s',
                b.pid, coalesce(nullif(b.application_name, ''), b.backend_type), b.usename,
                b.state, extract(epoch FROM clock_timestamp() - b.xact_start)::int,
                left(b.query, 300))
        END
        FROM (
            SELECT DISTINCT pid FROM unnest(pg_blocking_pids(s.pid)) AS blocking (pid)
        ) AS blocking
        LEFT JOIN pg_stat_activity b ON b.pid = blocking.pid
        ORDER BY b.xact_start
        LIMIT 10)
FROM pg_stat_activity s
WHERE s.pid = %(pid)s;
