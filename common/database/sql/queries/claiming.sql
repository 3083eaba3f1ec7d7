-- Claims and settlements of workers.

-- name: register
-- Executed for each new connection: a server restored to an earlier point has no such row.
INSERT INTO {schema}.incarnation (id, worker, lease, node)
VALUES (%(incarnation)s, %(worker)s, %(lease)s, %(node)s)
ON CONFLICT DO NOTHING;

-- name: settle_and_claim
-- Settles completed commands, then claims the next run, in one round trip: one command of any type
-- for each free thread, and a prefetch of types that are known to be quick. The counts of the
-- claims depend on the result of the settlement, so that they come second and see its effect. (As
-- CTEs of one statement they run first, and claim the rows that are being settled.) What nearly all
-- rows have in common is NULL, as reading an array or a UUID takes 0.2 us.
SELECT CASE WHEN cardinality(s.lost) > 0 THEN s.lost END, c.domain, c.priority, c.id, c.token,
    c.command_id, c.type, c.data, c.attempts, c.losses, c.max_attempts,
    nullif(c.correlation_id, c.command_id), c.reply_to_and_headers, c.created_at, c.waited,
    c.batch_id, c.caller, c.ctid
FROM {schema}.complete(
        %(ctids)s::tid[], %(ids)s::bigint[], %(tokens)s::bigint[], %(command_ids)s::uuid[],
        %(claimer)s, %(max_attempts)s::smallint[], %(results)s::json[],
        %(batch_ids)s::uuid[]) s (lost)
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.claim(
            %(claim_domains)s::text[], %(claim_priorities)s::smallint[], %(floors)s::bigint[],
            %(below)s, %(types)s::text[], CASE WHEN s.lost IS NOT NULL THEN %(free)s::integer END,
            1, %(bytes)s, %(most_losses)s::smallint, %(claimer)s, %(lease)s)
        UNION ALL
        SELECT * FROM {schema}.claim(
            %(claim_domains)s::text[], %(claim_priorities)s::smallint[], %(quick_floors)s::bigint[],
            false, %(quick_types)s::text[],
            CASE WHEN s.lost IS NOT NULL THEN %(ahead)s::integer END, 0, %(bytes_ahead)s,
            %(most_losses)s::smallint, %(claimer)s, %(lease)s)
    ) c ON true;

-- name: settle_and_claim_with_lanes
-- The same for a worker some of whose types have limits.
SELECT CASE WHEN cardinality(s.lost) > 0 THEN s.lost END, c.domain, c.priority, c.id, c.token,
    c.command_id, c.type, c.data, c.attempts, c.losses, c.max_attempts,
    nullif(c.correlation_id, c.command_id), c.reply_to_and_headers, c.created_at, c.waited,
    c.batch_id, c.caller, c.ctid
FROM {schema}.complete(
        %(ctids)s::tid[], %(ids)s::bigint[], %(tokens)s::bigint[], %(command_ids)s::uuid[],
        %(claimer)s, %(max_attempts)s::smallint[], %(results)s::json[],
        %(batch_ids)s::uuid[]) s (lost)
    LEFT JOIN LATERAL {schema}.claim_with_lanes(
        %(claim_domains)s::text[], %(claim_priorities)s::smallint[], %(floors)s::bigint[],
        %(below)s, %(types)s::text[], CASE WHEN s.lost IS NOT NULL THEN %(free)s::integer END,
        %(bytes)s, %(quick_floors)s::bigint[], %(quick_types)s::text[], %(ahead)s, %(bytes_ahead)s,
        %(most_losses)s::smallint, %(claimer)s, %(lease)s,
        %(stray_domains)s::text[], %(stray_priorities)s::smallint[], %(stray_floors)s::bigint[],
        %(stray_below)s, %(stray_types)s::text[], %(strays)s,
        %(lane_domains)s::text[], %(lane_types)s::text[], %(shared)s::text[], %(lanes)s,
        %(quick_lane_domains)s::text[], %(quick_lane_types)s::text[], %(lanes_ahead)s, %(node)s
    ) c ON true;

-- name: settle_and_claim_with_oldest
-- The same for a worker of which a share of the claims takes the oldest commands.
SELECT CASE WHEN cardinality(s.lost) > 0 THEN s.lost END, c.domain, c.priority, c.id, c.token,
    c.command_id, c.type, c.data, c.attempts, c.losses, c.max_attempts,
    nullif(c.correlation_id, c.command_id), c.reply_to_and_headers, c.created_at, c.waited,
    c.batch_id, c.caller, c.ctid
FROM {schema}.complete(
        %(ctids)s::tid[], %(ids)s::bigint[], %(tokens)s::bigint[], %(command_ids)s::uuid[],
        %(claimer)s, %(max_attempts)s::smallint[], %(results)s::json[],
        %(batch_ids)s::uuid[]) s (lost)
    LEFT JOIN LATERAL {schema}.claim_with_oldest(
        %(claim_domains)s::text[], %(claim_priorities)s::smallint[], %(floors)s::bigint[],
        %(below)s, %(types)s::text[], CASE WHEN s.lost IS NOT NULL THEN %(free)s::integer END,
        %(bytes)s, %(quick_floors)s::bigint[], %(quick_types)s::text[], %(ahead)s, %(bytes_ahead)s,
        %(most_losses)s::smallint, %(claimer)s, %(lease)s, %(oldest)s, %(oldest_floors)s::bigint[]
    ) c ON true;

-- name: read_limited_types
-- Those of these types that have limits, and the names of the limits that several types share.
SELECT {schema}.limited_types(%(types)s::text[], true), ARRAY(
    SELECT DISTINCT s.name FROM unnest(%(types)s::text[]) t (name),
        LATERAL {schema}.limits_of(split_part(t.name, ' ', 1), split_part(t.name, ' ', 2)) l,
        unnest(l.shared) s (name)
    ORDER BY s.name);

-- name: take_places
-- Gives claims of these types positions in their lanes, as limits_changed does. Skips those that
-- are being settled.
UPDATE {schema}.ready SET lane_position = id
WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM {schema}.ready r
    WHERE r.claimer = %(claimer)s AND r.lane_position IS NULL
        AND (r.domain || ' ' || r.type) = ANY (%(types)s::text[])
    FOR UPDATE SKIP LOCKED));

-- name: settle
-- With a marker, inside a handler's transaction: NULL if that has ended or has another isolation
-- level; and the statements that SQL has prepared in this session, which outlive the transaction.
SELECT CASE
    WHEN %(marker)s::text IS NULL OR current_setting('cmdbus.transaction', true) = %(marker)s
        AND current_setting('transaction_isolation') = 'read committed'
    THEN {schema}.settle(
        %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[],
        %(tokens)s::bigint[], %(command_ids)s::uuid[], %(claimer)s,
        %(kinds)s::text[], %(attempts)s::smallint[], %(losses)s::smallint[],
        %(max_attempts)s::smallint[], %(results)s::json[],
        %(delays)s::double precision[], %(codes)s::text[], %(messages)s::text[],
        %(details)s::json[], %(batch_ids)s::uuid[],
        %(reply_headers)s::json[])
    END,
    CASE WHEN %(marker)s::text IS NOT NULL THEN (
        SELECT array_agg(quote_ident(name)) FROM pg_prepared_statements WHERE from_sql) END;

-- name: complete_within
-- As settle with a marker, for plain completions.
SELECT CASE
    WHEN current_setting('cmdbus.transaction', true) = %(marker)s
        AND current_setting('transaction_isolation') = 'read committed'
    THEN {schema}.complete(
        %(ctids)s::tid[], %(ids)s::bigint[], %(tokens)s::bigint[], %(command_ids)s::uuid[],
        %(claimer)s, %(max_attempts)s::smallint[], %(results)s::json[], %(batch_ids)s::uuid[])
    END,
    (SELECT array_agg(quote_ident(name)) FROM pg_prepared_statements WHERE from_sql);

-- name: find_claimable
-- Keys of the rows that a claim would take; see claim in the schema.
SELECT c.domain, c.priority, c.id, c.token, c.command_id, c.claimer
FROM unnest(%(domains)s::text[], %(priorities)s::smallint[]) q (domain, priority),
    LATERAL (
        SELECT r.domain, r.priority, r.id, r.token, r.command_id, r.claimer
        FROM {schema}.ready r
        WHERE r.domain = q.domain AND r.priority = q.priority
            AND {schema}.is_claimable(r.claimer, r.lease_until)
            AND (r.domain || ' ' || r.type) = ANY (%(types)s::text[])
            AND r.losses + (r.claimer IS NOT NULL)::integer
                BETWEEN %(least_losses)s AND %(most_losses)s
            AND {schema}.has_not_expired(r.expires_at, r.claimed_at, clock_timestamp())
            AND r.id <> ALL (%(skipped)s::bigint[])
        ORDER BY r.domain, r.priority, r.id
        LIMIT %(count)s
    ) c
WHERE NOT EXISTS (SELECT FROM {schema}.domain d WHERE d.name = q.domain AND d.paused)
LIMIT %(count)s;

-- name: find_claimed
-- The claims of a worker that are neither settled nor released, or those of these commands, without
-- the payloads, which may be large. Without commands it reads all of ready, once for a dead process
-- or a lost reply: with an index for it claims would no longer be HOT updates.
SELECT domain, priority, id, token, command_id, type, '', attempts, losses, max_attempts,
    correlation_id, {schema}.reply_to_and_headers(reply_to, headers),
    {schema}.finite(created_at),
    extract(epoch FROM claimed_at
        - {schema}.finite(coalesce(due_at, created_at)))::double precision, batch_id, caller, ctid
FROM {schema}.ready
WHERE claimer = %(claimer)s
    AND (%(command_ids)s::uuid[] IS NULL OR command_id = ANY (%(command_ids)s));

-- name: find_keys
-- The keys of a worker's claims; reads all of ready, like find_claimed.
SELECT domain, priority, id, token, command_id, claimer
FROM {schema}.ready
WHERE claimer = %(claimer)s;

-- name: describe_command
-- What lines of log say of a command, whose row may have been moved to troubleshooting just now.
-- Without a domain it is one that is claimed.
SELECT domain, type, correlation_id, attempts + 1
FROM (
    SELECT domain, type, correlation_id, attempts FROM {schema}.ready
    WHERE command_id = %(command_id)s
    UNION ALL SELECT domain, type, correlation_id, attempts FROM {schema}.scheduled
    WHERE domain = %(domain)s::text AND command_id = %(command_id)s
    UNION ALL SELECT domain, type, correlation_id, attempts FROM {schema}.limited
    WHERE domain = %(domain)s::text AND command_id = %(command_id)s
    UNION ALL SELECT domain, type, correlation_id, attempts FROM {schema}.troubleshooting
    WHERE domain = %(domain)s::text AND command_id = %(command_id)s
) found
LIMIT 1;

-- name: find_held
-- The positions of those of these claims that are still their claimer's.
SELECT k.position FROM {schema}.ready r
JOIN unnest(
    %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[], %(tokens)s::bigint[],
    %(command_ids)s::uuid[])
    WITH ORDINALITY k (domain, priority, id, token, command_id, position)
    ON r.domain = k.domain AND r.priority = k.priority AND r.id = k.id AND r.token = k.token
    AND r.claimer = %(claimer)s AND r.command_id = k.command_id;

-- name: read_payloads
-- The payloads of the first claims that are still their claimer's and together hold at most this
-- number of bytes, and of one at least.
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

-- name: find_ends
-- How the executions of an incarnation ended, in the order of their claims; NULL where that is not
-- known. Anything but a completion leaves an event of the claim's token, which comes first, as an
-- operator may have completed the command since. One that its handler gave back, or that a breaker
-- has kept from a call, waits with that token: in scheduled, and then in ready.
SELECT coalesce(
    (SELECT CASE e.kind
            WHEN 'LOST' THEN 'LOST'
            WHEN 'BUSINESS_RULE_FAILED' THEN 'FAILED'
            WHEN 'MOVED_TO_TROUBLESHOOTING_QUEUE' THEN 'TROUBLE'
            ELSE CASE e.details ->> 'reason'::text WHEN 'INTERRUPTED' THEN 'INTERRUPTED'
                ELSE 'RETRY' END END
        FROM {schema}.event e
        WHERE e.domain = k.domain AND e.command_id = k.command_id AND e.token = k.token
            AND e.claimer = %(claimer)s
            AND e.kind IN ('LOST', 'BUSINESS_RULE_FAILED', 'MOVED_TO_TROUBLESHOOTING_QUEUE',
                'FAILED')
        ORDER BY e.id
        LIMIT 1),
    (SELECT f.status FROM {schema}.finished f
        WHERE f.domain = k.domain AND f.command_id = k.command_id AND f.token = k.token
            AND f.claimer = %(claimer)s AND f.status IN ('COMPLETED', 'CANCELED')
        LIMIT 1),
    (SELECT 'INTERRUPTED' FROM {schema}.scheduled s
        WHERE s.domain = k.domain AND s.command_id = k.command_id AND s.token = k.token
            AND s.claimer = %(claimer)s
        LIMIT 1),
    (SELECT 'INTERRUPTED' FROM {schema}.ready r
        WHERE r.domain || '' = k.domain AND r.command_id = k.command_id AND r.token = k.token
            AND r.claimer IS NULL
        LIMIT 1))
FROM unnest(%(domains)s::text[], %(command_ids)s::uuid[], %(tokens)s::bigint[])
    WITH ORDINALITY k (domain, command_id, token, place)
ORDER BY place;

-- name: read_checkpoint
-- The checkpoint of a claim's command, unless the claim was lost; no row if there is none.
SELECT c.data::text
FROM {schema}.ready r
JOIN {schema}.checkpoint c
    ON c.domain = r.domain AND c.command_id = r.command_id AND c.created_at = r.created_at
WHERE r.domain = %(domain)s AND r.priority = %(priority)s AND r.id = %(id)s
    AND r.token = %(token)s AND r.claimer = %(claimer)s AND r.command_id = %(command_id)s;

-- name: has_written
-- Whether this transaction has written or locked a row.
SELECT pg_current_xact_id_if_assigned() IS NOT NULL;

-- name: count_failures
-- The executions of a command that ended with an error of this code.
SELECT count(*) FROM {schema}.event
WHERE domain = %(domain)s AND command_id = %(command_id)s AND code = %(code)s;
