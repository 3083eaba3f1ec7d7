-- May do everything but change the schema: run commands, operate, send, read.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON
    {schema}.ready, {schema}.scheduled, {schema}.troubleshooting, {schema}.finished,
    {schema}.event, {schema}.identity, {schema}.domain, {schema}.incarnation, {schema}.waiter
    TO {role};
GRANT SELECT ON {schema}.command, {schema}.domain_event, {schema}.migration TO {role};
GRANT SELECT, UPDATE ON SEQUENCE {schema}.armed, {schema}.alarm TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role};
