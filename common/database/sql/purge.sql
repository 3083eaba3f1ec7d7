SELECT {schema}.purge(%(domain)s, %(count)s);
