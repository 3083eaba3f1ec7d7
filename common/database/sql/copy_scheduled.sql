COPY {schema}.scheduled (
    domain, priority, command_id, type, data, correlation_id, reply_to, max_attempts, due_at
) FROM STDIN;
