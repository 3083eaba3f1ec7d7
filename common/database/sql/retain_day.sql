SELECT {schema}.retain_day(%(partition)s, %(blocks)s);
