SELECT {schema}.begin_sweep(%(domain)s, %(seconds)s);
