-- Whether each domain takes so many more; and the server's time, for delays.
SELECT d.name, a.refusal, a.depth, a.max_depth, a.warn_depth, a.oldest_age,
    clock_timestamp()
FROM unnest(%(domains)s::text[], %(counts)s::bigint[]) d (name, count),
    {schema}.admit(d.name, d.count) a;
