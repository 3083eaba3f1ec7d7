-- What kind of server this is, and as whom we are there.
SELECT current_setting('server_encoding'), current_setting('client_encoding'),
    pg_is_in_recovery(), session_user::text, current_database()::text;
