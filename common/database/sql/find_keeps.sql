-- For how many seconds domains keep their history, and how many seconds ago each was swept, NULL
-- if that is not known. No interval, as Python's is shorter.
SELECT name, extract(epoch FROM keep)::double precision,
    CASE WHEN swept_at <= clock_timestamp()
        THEN extract(epoch FROM clock_timestamp() - swept_at)::double precision END
FROM {schema}.domain;
