-- For how many seconds domains keep their history. No interval, as Python's is shorter.
SELECT name, extract(epoch FROM keep)::double precision FROM {schema}.domain;
