-- Waiting and the timers of nodes.

-- name: arm
SELECT {schema}.arm(
    %(node)s, %(domains)s, clock_timestamp() + pg_catalog.make_interval(secs => %(reads_in)s),
    pg_catalog.make_interval(secs => %(lasts)s));

-- name: listen
LISTEN {channel}_ready;
LISTEN {channel}_due;
LISTEN {channel}_pause;
LISTEN {channel}_breaker;
LISTEN {channel}_watch;

-- name: listen_to_one
LISTEN {other_channel};

-- name: unlisten_one
UNLISTEN {other_channel};

-- name: read_timers
-- Seconds until the first scheduled command is due, not positive while another session has locked
-- it, until the next lease of other claimers ends, and until that of an own one does; whether a
-- suspect waits; how full the server's queue of notifications is, from 0 to 1; the number of pages
-- of ready that this has read; seconds until the first command that is not due yet; those until
-- commands expire, see next_expiry; those until a rate lets a command start, or a breaker a
-- suspect, not positive if that was in the last %(unseen)s seconds; those until a schedule needs a
-- steward; and a number of the bridges that are there, which another bridge changes.
SELECT
    (SELECT extract(epoch FROM due_at - clock_timestamp()) FROM {schema}.scheduled
     WHERE isfinite(due_at) ORDER BY due_at, id LIMIT 1)::double precision,
    lease.others, lease.own,
    {schema}.suspect_waits(began.types, %(losses)s::smallint, %(priorities)s::smallint[]),
    pg_notification_queue_usage(),
    pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass) - began.pages,
    (SELECT extract(epoch FROM due_at - clock_timestamp()) FROM {schema}.scheduled
     WHERE isfinite(due_at) AND due_at > now() ORDER BY due_at, id LIMIT 1)::double precision,
    expiry.due, expiry.next,
    least({schema}.next_opening(
        ARRAY(SELECT split_part(t, ' ', 1) FROM unnest(began.types) t),
        ARRAY(SELECT split_part(t, ' ', 2) FROM unnest(began.types) t),
        ARRAY(SELECT name FROM {schema}.limit_in_force WHERE starts_per_second IS NOT NULL),
        %(node)s, began.unseen, began.unseen),
        {schema}.next_suspect_probe(
            %(types)s::text[], %(losses)s::smallint, %(priorities)s::smallint[], began.unseen)),
    (SELECT extract(epoch FROM check_at - clock_timestamp()) FROM {schema}.schedule
     WHERE check_at < 'infinity' ORDER BY check_at LIMIT 1)::double precision,
    (SELECT sum(extract(epoch FROM added_at)) FROM {schema}.bridge)::double precision
FROM (SELECT pg_stat_get_xact_blocks_fetched('{schema}.ready'::regclass) AS pages,
        clock_timestamp() - pg_catalog.make_interval(secs => %(unseen)s) AS unseen,
        {schema}.let_through(%(types)s::text[]) AS types) began
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.next_lease_ends(
            %(domains)s, began.types, %(priorities)s::smallint[], %(own)s::bigint[])
        WHERE %(leases)s
    ) lease ON true,
    {schema}.next_expiry() expiry;

-- name: suspect_waits
-- Whether a suspect of these types waits, and no breaker keeps it.
SELECT {schema}.suspect_waits(
    {schema}.let_through(%(types)s::text[]), %(losses)s::smallint, %(priorities)s::smallint[]);

-- name: find_first_due
-- The key of the command that a promotion of one row takes, and its table.
SELECT s.domain, s.priority, s.id, s.token, s.command_id, s.claimer, 'scheduled'
FROM {schema}.find_due(1, %(skipped)s::bigint[]) d
JOIN {schema}.scheduled s ON s.due_at = d.due_at AND s.id = d.id;

-- name: find_first_expired
-- The same for the command that is ended first because it has expired.
SELECT domain, priority, id, token, command_id, claimer, source
FROM {schema}.find_expired(1, %(skipped)s::bigint[]);
