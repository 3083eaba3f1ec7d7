-- Claims one row by its key; the columns of a claim.
WITH picked AS MATERIALIZED (
    SELECT r.domain, r.priority, r.id FROM {schema}.ready r
    WHERE r.domain = %(domain)s AND r.priority = %(priority)s AND r.id = %(id)s
        AND r.token = %(token)s AND r.command_id = %(command_id)s
        AND (r.lease_until IS NULL OR {schema}.lease_is_over(r.claimer, r.lease_until))
    FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.ready r SET
    token = r.token + 1,
    losses = r.losses + (r.claimer IS NOT NULL)::integer,
    claimer = %(claimer)s::bigint,
    claimed_at = clock_timestamp(),
    lease_until = clock_timestamp() + %(lease)s::interval
FROM picked p, LATERAL {schema}.note_lost(
    ARRAY[p.domain]::text[], ARRAY[p.priority]::smallint[], ARRAY[p.id]) noted
WHERE r.domain = p.domain AND r.priority = p.priority AND r.id = p.id
RETURNING r.domain, r.priority, r.id, r.token, r.command_id, r.type, r.data::text, r.attempts,
    r.losses, r.max_attempts, r.correlation_id, r.reply_to, {schema}.finite(r.created_at),
    extract(epoch FROM clock_timestamp()
        - {schema}.finite(coalesce(r.due_at, r.created_at)))::double precision;
