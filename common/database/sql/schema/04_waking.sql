-- How a waiting node learns of work. A NOTIFY on every insert would serialise commits (32
-- concurrent senders fall from 25,000 a second to 7,000), so it is sent only while a flag shows
-- that a node waits.

-- The bit of a domain in armed. Domains may share one; the notification names its domain.
CREATE FUNCTION {schema}.domain_bit(p_domain text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 1::bigint << ((hashtextextended(p_domain, 0) & 9223372036854775807) % 62)::integer;

-- Arms a node for p_domains or, without any, ends its wait. True: the node was not armed before,
-- so it must claim until the writers have ended (see writers) before it waits for work. Locks
-- waiter against other nodes. The flags are set before the commit: a failure in between leaves a
-- bit too many, which costs a notification.
CREATE FUNCTION {schema}.arm(
    p_node bigint, p_domains text[], p_reads_at timestamptz, p_for interval
) RETURNS boolean
LANGUAGE plpgsql
AS $$
DECLARE
    wanted bigint := (SELECT coalesce(bit_or({schema}.domain_bit(d)), 0) FROM unnest(p_domains) d);
    fresh boolean;
BEGIN
    LOCK TABLE {schema}.waiter IN SHARE ROW EXCLUSIVE MODE;
    fresh := NOT EXISTS (
        SELECT FROM {schema}.waiter
        WHERE node = p_node AND bits & wanted = wanted AND armed_until > clock_timestamp()
    );
    INSERT INTO {schema}.waiter (node, bits, reads_at, armed_until)
    VALUES (p_node, wanted, p_reads_at, clock_timestamp() + p_for)
    ON CONFLICT (node) DO UPDATE SET
        bits = EXCLUDED.bits, reads_at = EXCLUDED.reads_at, armed_until = EXCLUDED.armed_until;
    PERFORM {schema}.set_flags();
    RETURN fresh;
END
$$;

-- Removes a node that stops. Locks waiter against other nodes.
CREATE FUNCTION {schema}.leave(p_node bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    LOCK TABLE {schema}.waiter IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM {schema}.waiter WHERE node = p_node;
    DELETE FROM {schema}.node WHERE id = p_node;
    PERFORM {schema}.set_flags();
END
$$;

-- Sets armed and alarm from the rows that have not expired; called by arm and leave, under
-- their lock. A reads_at in the past does not count: its node reads just now, or has died.
-- Without any other the alarm is later than every due time. Readers of replies, at '-infinity',
-- read no timers.
CREATE FUNCTION {schema}.set_flags() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM {schema}.waiter WHERE armed_until <= clock_timestamp();
    PERFORM setval('{schema}.armed', coalesce(bit_or(bits), 0)),
            setval('{schema}.alarm', CASE WHEN count(*) FILTER (WHERE reads_at > '-infinity') = 0
                THEN 0 ELSE coalesce(
                extract(epoch FROM min(reads_at) FILTER (WHERE reads_at > clock_timestamp()))
                * 1000000, 9223372036854775807)::bigint END)
    FROM {schema}.waiter;
END
$$;

-- Transactions that may hold an insert which saw the flag down, the resume of a domain that did,
-- or a lock on a row that claims have skipped. After arming, a node claims until all of these have
-- ended. (Comparing xids or snapshots misses a sender that began after the snapshot's latest
-- completed transaction.)
CREATE FUNCTION {schema}.writers() RETURNS text[]
LANGUAGE sql VOLATILE
AS $$
    SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}')
    FROM pg_locks
    WHERE locktype = 'relation' AND granted
        AND mode IN ('RowShareLock', 'RowExclusiveLock')
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND relation IN ('{schema}.ready'::regclass, '{schema}.scheduled'::regclass,
                         '{schema}.domain'::regclass, '{schema}.limited'::regclass,
                         '{schema}.turn'::regclass, '{schema}.lane'::regclass)
        AND pid IS DISTINCT FROM pg_backend_pid()
$$;

-- Sends a notification, unless the transaction has switched that off (PREPARE TRANSACTION rejects
-- a NOTIFY) or the queue is three quarters full; nodes poll from one half on. A full queue, which
-- one session that listens and does not read can cause, would fail the COMMIT of every send.
CREATE FUNCTION {schema}.notify(p_channel text, p_payload text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF current_setting('cmdbus.notify', true) IS DISTINCT FROM 'off'
        AND pg_notification_queue_usage() < 0.75
    THEN
        PERFORM pg_notify(p_channel, p_payload);
    END IF;
END
$$;

-- Wakes the nodes that wait for a domain; called where commands become claimable.
CREATE FUNCTION {schema}.wake(p_domain text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF (SELECT last_value FROM {schema}.armed) & {schema}.domain_bit(p_domain) <> 0 THEN
        PERFORM {schema}.notify('{channel}_ready', p_domain);
    END IF;
END
$$;

-- The trigger of ready: wakes the nodes that wait, and moves what has a limit into its lane.
-- VOLATILE here and in wake: a STABLE function would read the flag as of the statement's beginning,
-- and lose a node that arms meanwhile. Lanes wake by themselves; without any limit, the number of
-- their changes is 0. What was lost before is left to claims, which know whether it is a suspect.
CREATE FUNCTION {schema}.wake_for_ready() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    limited text[] := '{}';
BEGIN
    IF pg_sequence_last_value('{schema}.limits'::regclass) <> 0 THEN
        limited := ARRAY(SELECT DISTINCT domain || ' ' || type FROM arrived
                         WHERE claimer IS NULL AND losses = 0);
        IF cardinality(limited) > 0 THEN
            limited := {schema}.limited_types(limited, false);
        END IF;
        IF cardinality(limited) > 0 THEN
            PERFORM {schema}.move_arrived(array_agg(domain), array_agg(priority), array_agg(id))
            FROM arrived
            WHERE claimer IS NULL AND losses = 0 AND domain || ' ' || type = ANY (limited);
        END IF;
    END IF;
    IF pg_sequence_last_value('{schema}.armed'::regclass) <> 0 THEN
        PERFORM {schema}.wake(domain)
        FROM (SELECT DISTINCT domain FROM arrived
              WHERE claimer IS NULL
                  AND (losses > 0 OR domain || ' ' || type <> ALL (limited))) d;
    END IF;
    RETURN NULL;
END
$$;

-- Notifies of a timer at p_time, unless that is NULL, if it is before the alarm, also while all
-- nodes are busy; called where commands that expire are sent, and where lanes wait for their rate.
-- An alarm in the past is a dead node's, and those of the others are unknown.
CREATE FUNCTION {schema}.wake_at(p_time timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    reads_at bigint := (SELECT last_value FROM {schema}.alarm);
    due bigint := extract(epoch FROM p_time) * 1000000;
BEGIN
    IF due IS NOT NULL AND reads_at <> 0
        AND (due < reads_at OR reads_at < extract(epoch FROM clock_timestamp()) * 1000000)
    THEN
        PERFORM {schema}.notify('{channel}_due', (due / 1000)::text);
    END IF;
END
$$;

-- The trigger of scheduled. What is due before it expires needs no wake-up for that: the timers are
-- read when it is due.
CREATE FUNCTION {schema}.wake_for_scheduled() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF (SELECT last_value FROM {schema}.alarm) <> 0 THEN
        PERFORM {schema}.wake_at(min(due_at)) FROM arrived WHERE isfinite(due_at);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER wake AFTER INSERT ON {schema}.ready
    REFERENCING NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wake_for_ready();

CREATE TRIGGER wake AFTER INSERT ON {schema}.scheduled
    REFERENCING NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wake_for_scheduled();

-- Also where triggers are off: in sessions that restore or replicate rows.
ALTER TABLE {schema}.ready ENABLE ALWAYS TRIGGER wake;
ALTER TABLE {schema}.scheduled ENABLE ALWAYS TRIGGER wake;
