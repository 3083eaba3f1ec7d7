-- One of a worker's claims; the columns of a claim.
SELECT domain, priority, id, token, command_id, type, data::text, attempts, losses, max_attempts,
    correlation_id, reply_to, {schema}.finite(created_at),
    extract(epoch FROM claimed_at
        - {schema}.finite(coalesce(due_at, created_at)))::double precision
FROM {schema}.ready
WHERE domain = %(domain)s AND priority = %(priority)s AND id = %(id)s AND token = %(token)s
    AND command_id = %(command_id)s AND claimer = %(claimer)s;
