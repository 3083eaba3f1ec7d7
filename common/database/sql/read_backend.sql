-- The server process of this session, and when it began, in microseconds since 1970: that tells
-- it from a later one of the same pid. Behind a pooler the driver knows another pid, the pooler's.
-- The start is NULL where the role may not see the sessions of the one that has logged in.
SELECT pg_backend_pid(), (extract(epoch FROM backend_start) * 1000000::numeric)::bigint,
    session_user::text, current_user::text
FROM pg_stat_activity WHERE pid = pg_backend_pid();
