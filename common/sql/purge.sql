SELECT {schema}.purge(%(domain)s);
