SELECT {schema}.landed(%(domain)s, %(command_id)s, %(call)s, %(again)s);
