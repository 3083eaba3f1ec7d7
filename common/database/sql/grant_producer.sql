-- May send and cancel; may read nothing of what others sent.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.migration TO {role};
GRANT EXECUTE ON FUNCTION
    {schema}.send, {schema}.enqueue, {schema}.admit, {schema}.identify, {schema}.landed,
    {schema}.cancel, {schema}.wake, {schema}.notify, {schema}.domain_bit TO {role};
GRANT SELECT ON SEQUENCE {schema}.armed, {schema}.alarm TO {role};
-- For bulk sends, which COPY; the columns of claims and attempts are not theirs.
GRANT INSERT (domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts)
    ON {schema}.ready TO {role};
GRANT INSERT (domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts,
              due_at) ON {schema}.scheduled TO {role};
