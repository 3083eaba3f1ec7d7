-- May see what there is and how it goes, but no payload, result or message.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.migration TO {role};
GRANT SELECT (domain, command_id, type, status, priority, attempts, max_attempts, error_code,
              correlation_id, reply_to, batch_id, created_at, due_at, started_at, finished_at,
              worker) ON {schema}.command TO {role};
-- What counts of domains and of troubleshooting read.
GRANT SELECT (domain, type, created_at, due_at, lease_until) ON {schema}.ready TO {role};
GRANT SELECT (domain, type) ON {schema}.scheduled TO {role};
GRANT SELECT (domain, type, error_code, failed_at) ON {schema}.troubleshooting TO {role};
GRANT SELECT ON {schema}.domain TO {role};
GRANT EXECUTE ON FUNCTION {schema}.is_handled TO {role};
