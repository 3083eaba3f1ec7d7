-- Ends sessions, known by pid and start, or by the name of their worker; says how many there
-- still are. Until there is none, they may commit what is in their socket.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (application_name = %(name)s
        OR (pid, (extract(epoch FROM backend_start) * 1000000::numeric)::bigint) IN (
            SELECT * FROM unnest(%(pids)s::integer[], %(starts)s::bigint[])));
