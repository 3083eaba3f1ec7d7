SELECT {schema}.retain_day(%(partition)s, %(block)s, %(blocks)s);
