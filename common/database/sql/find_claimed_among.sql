-- Like find_claimed, of these commands only: by ready_command.
SELECT domain, priority, id, token, command_id, type, '', attempts, losses, max_attempts,
    correlation_id, reply_to, {schema}.finite(created_at),
    extract(epoch FROM claimed_at
        - {schema}.finite(coalesce(due_at, created_at)))::double precision
FROM {schema}.ready
WHERE command_id = ANY (%(command_ids)s::uuid[]) AND claimer = %(claimer)s;
