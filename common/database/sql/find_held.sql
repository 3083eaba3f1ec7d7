-- The positions of these claims that their claimer still has.
SELECT k.position FROM {schema}.ready r
JOIN unnest(
    %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[], %(tokens)s::bigint[],
    %(command_ids)s::uuid[])
    WITH ORDINALITY k (domain, priority, id, token, command_id, position)
    ON r.domain = k.domain AND r.priority = k.priority AND r.id = k.id AND r.token = k.token
    AND r.claimer = %(claimer)s AND r.command_id = k.command_id;
