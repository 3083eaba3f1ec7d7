-- What an app declares when it starts.

-- name: declare
-- All of it in one transaction. The limits and breakers that living nodes have declared otherwise;
-- the rows of schedules and tags have no name.
SELECT 'limits', l.name, l.before, l.after
FROM {schema}.declare_limits(%(app)s::text, %(limits)s::json) l
UNION ALL
SELECT 'breakers', b.name, b.before, b.after
FROM {schema}.declare_breakers(%(app)s::text, %(breakers)s::json) b
UNION ALL
SELECT 'schedules', NULL, NULL, NULL
FROM {schema}.declare_schedules(%(app)s::text, %(schedules)s::json)
UNION ALL
SELECT 'tags', NULL, NULL, NULL FROM {schema}.declare_tags(%(app)s::text, %(tags)s::json);
