SELECT {schema}.arm(
    %(node)s, %(domains)s, clock_timestamp() + pg_catalog.make_interval(secs => %(looks_in)s),
    pg_catalog.make_interval(secs => %(lasts)s));
