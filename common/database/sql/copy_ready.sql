-- Rows with other defaults than these (claims, attempts) are not a sender's.
COPY {schema}.ready (
    domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts
) FROM STDIN;
