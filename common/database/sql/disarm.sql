SELECT {schema}.disarm(%(node)s);
