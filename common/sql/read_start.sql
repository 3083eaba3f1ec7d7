-- When this session began, in microseconds since 1970.
SELECT (extract(epoch FROM backend_start) * 1000000::numeric)::bigint
FROM pg_stat_activity WHERE pid = pg_backend_pid();
