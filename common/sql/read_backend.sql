-- The server process of this session, and when it began, in microseconds since 1970: that tells
-- it from a later one of the same pid. Behind a pooler the driver knows another pid, the pooler's.
SELECT pg_backend_pid(), (extract(epoch FROM backend_start) * 1000000::numeric)::bigint
FROM pg_stat_activity WHERE pid = pg_backend_pid();
