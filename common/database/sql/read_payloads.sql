-- The payloads of claims that are still their claimer's: of the first that hold at most so
-- many bytes together, and of one at least.
WITH sized AS (
    SELECT k.domain, k.priority, k.id, k.token, k.command_id,
        sum(octet_length(r.data::text)) OVER (ORDER BY k.place) AS upto,
        row_number() OVER (ORDER BY k.place) AS nth
    FROM unnest(
            %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[],
            %(tokens)s::bigint[], %(command_ids)s::uuid[])
        WITH ORDINALITY k (domain, priority, id, token, command_id, place)
    JOIN {schema}.ready r ON r.domain = k.domain AND r.priority = k.priority AND r.id = k.id
        AND r.token = k.token AND r.command_id = k.command_id AND r.claimer = %(claimer)s
)
SELECT r.id, r.token, r.data::text
FROM sized s
JOIN {schema}.ready r ON r.domain = s.domain AND r.priority = s.priority AND r.id = s.id
    AND r.token = s.token AND r.command_id = s.command_id
WHERE s.upto <= %(bytes)s::bigint OR s.nth = 1;
