SELECT {schema}.arm(
    %(node)s, %(domains)s, clock_timestamp() + make_interval(secs => %(looks_in)s),
    make_interval(secs => %(lasts)s));
