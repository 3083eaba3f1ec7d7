-- Waking who waits, and nobody else. A NOTIFY on every insert serialises
-- commits (32 concurrent senders fall from 25,000 a second to 7,000), so it is
-- sent only while a flag says that somebody waits.

-- The flag lives outside MVCC: a sequence's last_value, read by a VOLATILE
-- function, is current at every isolation level and leaves no dead rows. Its
-- bits are domains (see domain_bit); 0 says that nobody waits.
CREATE SEQUENCE {schema}.armed MINVALUE 0;
SELECT pg_catalog.setval('{schema}.armed', 0::bigint);

-- The earliest time, in microseconds since 1970, at which some node will look
-- for due commands anyway; 0 says that none will.
CREATE SEQUENCE {schema}.alarm MINVALUE 0;
SELECT pg_catalog.setval('{schema}.alarm', 0::bigint);

-- Who waits for what, until when; one row for each node.
CREATE TABLE {schema}.waiter (
    node bigint PRIMARY KEY,
    bits bigint NOT NULL,
    looks_at timestamptz NOT NULL,
    armed_until timestamptz NOT NULL
);

-- Two domains may share a bit; the notification's payload tells them apart.
CREATE FUNCTION {schema}.domain_bit(p_domain text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 1::bigint << ((hashtextextended(p_domain, 0) & 9223372036854775807) % 62)::integer;

-- Arms node p_node for p_domains, as one statement, and sets the flags from all
-- rows that have not expired. True says that the node was not armed before: it
-- must then wait for the writers (see writers) and claim before it rests. The
-- flag is set before the row is committed; a failure in between leaves a bit too
-- many, which costs a notification and loses none.
CREATE FUNCTION {schema}.arm(
    p_node bigint, p_domains text[], p_looks_at timestamptz, p_for interval
) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
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
    INSERT INTO {schema}.waiter (node, bits, looks_at, armed_until)
    VALUES (p_node, wanted, p_looks_at, clock_timestamp() + p_for)
    ON CONFLICT (node) DO UPDATE SET
        bits = EXCLUDED.bits, looks_at = EXCLUDED.looks_at, armed_until = EXCLUDED.armed_until;
    PERFORM {schema}.set_flags();
    RETURN fresh;
END
$$;

CREATE FUNCTION {schema}.disarm(p_node bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE {schema}.waiter IN SHARE ROW EXCLUSIVE MODE;
    UPDATE {schema}.waiter SET bits = 0 WHERE node = p_node;
    PERFORM {schema}.set_flags();
END
$$;

-- For a node that ends. Whoever dies without it leaves a row until it runs out.
CREATE FUNCTION {schema}.leave(p_node bigint) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE {schema}.waiter IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM {schema}.waiter WHERE node = p_node;
    DELETE FROM {schema}.node WHERE id = p_node;
    PERFORM {schema}.set_flags();
END
$$;

-- Only under arm's, disarm's and leave's lock. Rows of nodes that are gone are removed on
-- the way. A look that is over is none: its node is looking now, or it is dead; if there is no
-- other, the alarm is so late that everything is earlier.
CREATE FUNCTION {schema}.set_flags() RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM {schema}.waiter WHERE armed_until <= clock_timestamp();
    PERFORM setval('{schema}.armed', coalesce(bit_or(bits), 0)),
            setval('{schema}.alarm', CASE WHEN count(*) = 0 THEN 0 ELSE coalesce(
                extract(epoch FROM min(looks_at) FILTER (WHERE looks_at > clock_timestamp()))
                * 1000000, 9223372036854775807)::bigint END)
    FROM {schema}.waiter;
END
$$;

-- The transactions that may hold an insert which saw the flag down. Whoever has
-- armed afresh claims until none of them is left. (A comparison of xids or
-- snapshots loses the sender that came after the snapshot's latest completed one.)
CREATE FUNCTION {schema}.writers() RETURNS text[]
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}')
    FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND relation IN ('{schema}.ready'::regclass, '{schema}.scheduled'::regclass)
        AND pid IS DISTINCT FROM pg_backend_pid()
$$;

-- Two-phase transactions switch notifications off (PREPARE refuses after a
-- NOTIFY) and are found by the fallback poll. A full queue, which one session
-- that listens and does not read can cause for all databases, would fail the
-- COMMIT of whatever makes commands claimable: a send, a retry, a promotion, a
-- reply. So none is added to a queue that is three quarters full; from one half
-- on nodes poll.
CREATE FUNCTION {schema}.notify(p_channel text, p_payload text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('cmdbus.notify', true) IS DISTINCT FROM 'off'
        AND pg_notification_queue_usage() < 0.75
    THEN
        PERFORM pg_notify(p_channel, p_payload);
    END IF;
END
$$;

-- Whatever makes commands of a domain claimable calls this after it, or inserts
-- into ready.
CREATE FUNCTION {schema}.wake(p_domain text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (SELECT last_value FROM {schema}.armed) & {schema}.domain_bit(p_domain) <> 0 THEN
        PERFORM {schema}.notify('{channel}_ready', p_domain);
    END IF;
END
$$;

-- VOLATILE matters in both: a STABLE function reads the flag as of the
-- statement's beginning and loses whoever arms meanwhile.
CREATE FUNCTION {schema}.wake_for_ready() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (SELECT last_value FROM {schema}.armed) <> 0 THEN
        PERFORM {schema}.wake(domain) FROM (SELECT DISTINCT domain FROM arrived) d;
    END IF;
    RETURN NULL;
END
$$;

-- Says when something is due before anybody would look; also while all are busy. An alarm
-- that has passed is that of a node that is gone: nobody knows when the others look.
CREATE FUNCTION {schema}.wake_for_scheduled() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    looks_at bigint := (SELECT last_value FROM {schema}.alarm);
    due bigint;
BEGIN
    IF looks_at = 0 THEN
        RETURN NULL;
    END IF;
    SELECT extract(epoch FROM min(due_at)) * 1000000 INTO due FROM arrived WHERE isfinite(due_at);
    IF due < looks_at OR looks_at < extract(epoch FROM clock_timestamp()) * 1000000 THEN
        PERFORM {schema}.notify('{channel}_due', (due / 1000)::text);
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
