SELECT at, kind, NULL AS attempt, NULL AS worker, operator, NULL AS code, message, details::text
FROM {schema}.domain_event WHERE domain = %(domain)s ORDER BY id;
