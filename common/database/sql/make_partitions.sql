SELECT {schema}.make_partitions(%(days_ahead)s);
