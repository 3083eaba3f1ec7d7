SELECT c.domain, c.priority, c.id, c.token, c.command_id, c.type, c.data, c.attempts, c.losses,
    c.max_attempts, c.correlation_id, c.reply_to, c.created_at, c.waited
FROM {schema}.claim_suspect(
    %(domains)s::text[], %(types)s::text[], %(losses)s::smallint, %(claimer)s, %(lease)s) c;
