-- What kind of server this is, and as whom we are there; whether
-- the current role sees and ends the sessions of the one that has logged in.
SELECT current_setting('server_encoding'), current_setting('client_encoding'),
    pg_is_in_recovery(), session_user::text, current_database()::text,
    current_user::text,
    pg_has_role(session_user, 'USAGE')
    OR pg_has_role('pg_read_all_stats', 'USAGE') AND pg_has_role('pg_signal_backend', 'USAGE');
