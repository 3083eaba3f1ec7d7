SELECT {schema}.landed(%(domain)s, %(command_id)s, %(brought)s, %(call)s, %(again)s);
