INSERT INTO {schema}.incarnation (worker) VALUES (%(worker)s) RETURNING id;
