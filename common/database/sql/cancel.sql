SELECT {schema}.cancel(%(domain)s, %(command_id)s, %(reason)s, %(running)s, %(operator)s,
                       %(again)s);
