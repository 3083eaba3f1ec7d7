SELECT refusal, depth, max_depth, warn_depth, oldest_age
FROM {schema}.enqueue(
    %(domain)s, %(type)s, %(data)s::json, %(command_id)s, %(own)s, %(priority)s, %(delay)s::double precision,
    %(run_at)s, %(correlation_id)s, %(reply_to)s, %(max_attempts)s, %(call)s, %(again)s);
