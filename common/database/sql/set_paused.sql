SELECT {schema}.set_paused(%(domain)s, %(paused)s, %(operator)s, %(reason)s);
