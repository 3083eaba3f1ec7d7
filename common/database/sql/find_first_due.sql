-- The key of the command that a promotion of one row takes.
SELECT s.domain, s.priority, s.id, s.token, s.command_id, s.claimer
FROM {schema}.find_due(1, %(skipped)s::bigint[]) d
JOIN {schema}.scheduled s ON s.due_at = d.due_at AND s.id = d.id;
