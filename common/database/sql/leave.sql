SELECT {schema}.leave(%(node)s);
