-- May read everything, cancel and reschedule, resolve what is in troubleshooting, and steer
-- domains; may not send, run, or change a command or its history in any other way.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON
    {schema}.command, {schema}.ready, {schema}.scheduled, {schema}.troubleshooting,
    {schema}.event, {schema}.incarnation, {schema}.domain,
    {schema}.domain_event, {schema}.migration TO {role};
GRANT EXECUTE ON FUNCTION
    {schema}.cancel, {schema}.cancel_ready, {schema}.cancel_scheduled, {schema}.reschedule,
    {schema}.resolve, {schema}.resolve_batch, {schema}.configure_domain, {schema}.set_paused,
    {schema}.wake, {schema}.notify, {schema}.domain_bit, {schema}.is_handled,
    {schema}.is_waiting TO {role};
GRANT SELECT ON SEQUENCE {schema}.armed TO {role};
