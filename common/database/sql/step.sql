-- Settles what was completed, then claims the next run: one round trip, one commit.
-- First as many of any type as there are free slots, then, ahead, of the types that
-- are known to be quick. The claims come second because their counts are asked of the
-- settlement, and see what that did, each being a statement of its own inside its
-- function. (As CTEs of one statement the claim runs first, and takes again what is
-- being settled.)
SELECT s.lost, c.domain, c.priority, c.id, c.token, c.command_id, c.type, c.data, c.attempts,
    c.losses, c.max_attempts, c.correlation_id, c.reply_to, c.created_at, c.waited
FROM {schema}.complete(
        %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[],
        %(tokens)s::bigint[], %(command_ids)s::uuid[], %(claimer)s,
        %(attempts)s::smallint[], %(max_attempts)s::smallint[],
        %(results)s::json[]) s (lost)
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.claim(
            %(claim_domains)s::text[], %(claim_priorities)s::smallint[], %(floors)s::bigint[],
            %(below)s, %(types)s::text[], CASE WHEN s.lost IS NOT NULL THEN %(free)s::integer END,
            1, %(bytes)s, %(most_losses)s::smallint, %(claimer)s, %(lease)s)
        UNION ALL
        SELECT * FROM {schema}.claim(
            %(claim_domains)s::text[], %(claim_priorities)s::smallint[], %(quick_floors)s::bigint[],
            false, %(quick_types)s::text[], CASE WHEN s.lost IS NOT NULL THEN %(ahead)s::integer END,
            0, %(bytes_ahead)s, %(most_losses)s::smallint, %(claimer)s, %(lease)s)
    ) c ON true;
