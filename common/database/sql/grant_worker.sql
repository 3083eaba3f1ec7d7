-- May run commands, operate, send and read. History only grows: what a worker may remove of it
-- is what retain_day and retain_domain remove, which have the owner's rights.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON
    {schema}.ready, {schema}.scheduled, {schema}.waiter, {schema}.node TO {role};
GRANT SELECT, INSERT ON
    {schema}.troubleshooting, {schema}.finished, {schema}.event, {schema}.incarnation TO {role};
GRANT SELECT ON
    {schema}.command, {schema}.domain, {schema}.domain_event, {schema}.migration TO {role};
GRANT SELECT, UPDATE ON SEQUENCE {schema}.armed, {schema}.alarm, {schema}.patience TO {role};
GRANT SELECT ON SEQUENCE {schema}.ready_id_seq TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};
