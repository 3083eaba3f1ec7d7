SELECT {schema}.reschedule(%(domain)s, %(command_id)s, %(delay)s::double precision, %(run_at)s,
                           %(priority)s::smallint, %(operator)s, %(reason)s, %(again)s);
