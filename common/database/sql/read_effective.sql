-- What applies to this session, timeouts in milliseconds, and who says so.
SELECT name, setting, source FROM pg_settings WHERE name = ANY (%(names)s);
