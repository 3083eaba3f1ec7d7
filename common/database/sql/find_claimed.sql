-- What a worker has claimed and neither settled nor released: the columns of a claim,
-- without the payload, which may be large and which a rescue has no use for.
-- No index leads there, which would cost each claim its HOT update: asked for once for
-- a death or a lost reply, it reads all of ready.
SELECT domain, priority, id, token, command_id, type, '', attempts, losses, max_attempts,
    correlation_id, reply_to, {schema}.finite(created_at),
    extract(epoch FROM claimed_at
        - {schema}.finite(coalesce(due_at, created_at)))::double precision
FROM {schema}.ready
WHERE claimer = %(claimer)s;
