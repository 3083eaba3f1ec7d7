-- Again after each new connection: a server restored to an earlier point has forgotten it.
INSERT INTO {schema}.incarnation (id, worker, lease) VALUES (%(incarnation)s, %(worker)s, %(lease)s)
ON CONFLICT DO NOTHING;
