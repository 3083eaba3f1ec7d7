-- Lanes: how commands with a limit wait for it, and how workers claim them.
--
-- The commands of a type with one key are a lane (those without a key, too: its key is ''). They
-- wait in limited, in front of a claim that finds a place for them: it moves their rows into ready
-- and claims them at once. The place that a command holds is its row, so that no place is lost with
-- a process: it is free when the row moves on. Only claims lock a lane, never a sender, whose
-- transaction may last an hour; after the lock they count the rows again, with a snapshot that
-- shows what others have committed.
--
-- A claim looks only at lanes that have a turn. A turn is left by each transaction that adds to a
-- lane or frees a place of it, and by a claim that leaves commands that it could have taken. A lane
-- that is full, or that waits for its rate or for a shared limit, has none, and stands in no
-- claim's way.

-- Leaves a turn for each of these lanes; called by transactions that free a place.
CREATE FUNCTION {schema}.leave_turns(p_lanes {schema}.lane_key[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    INSERT INTO {schema}.turn (domain, type, key, priority)
    SELECT l.domain, l.type, coalesce(l.key, ''), min(l.priority)
    FROM unnest(p_lanes) l GROUP BY 1, 2, 3;
END
$$;

-- The trigger of limited: a turn for each lane that a statement adds to.
CREATE FUNCTION {schema}.leave_turns_of_arrived() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    INSERT INTO {schema}.turn (domain, type, key, priority)
    SELECT a.domain, a.type, coalesce(a.key, ''), min(a.priority)
    FROM arrived a GROUP BY 1, 2, 3;
    RETURN NULL;
END
$$;

CREATE TRIGGER leave_turns AFTER INSERT ON {schema}.limited
    REFERENCING NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.leave_turns_of_arrived();
ALTER TABLE {schema}.limited ENABLE ALWAYS TRIGGER leave_turns;

-- The trigger of turn, at the end of the transaction: wakes those that wait for the lane, or for a
-- place of a limit that it shares, unless the transaction itself has used the turn. It is not
-- queued while no node waits: one that arms later claims until this transaction has ended.
CREATE FUNCTION {schema}.wake_for_turn() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    IF (SELECT last_value FROM {schema}.armed) <> 0
        AND EXISTS (
            SELECT FROM {schema}.turn t
            WHERE t.domain = NEW.domain AND t.type = NEW.type AND t.priority = NEW.priority
                AND t.id = NEW.id)
    THEN
        PERFORM {schema}.wake(NEW.domain);
        PERFORM {schema}.wake(o.domain)
        FROM {schema}.limits_of(NEW.domain, NEW.type) m, unnest(m.shared) s (name), LATERAL (
            SELECT DISTINCT t.domain FROM {schema}.limited_type t
            WHERE s.name = ANY (t.shared) AND t.domain <> NEW.domain) o
        WHERE EXISTS (SELECT FROM {schema}.lane l WHERE l.waits_for = s.name);
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER wake AFTER INSERT ON {schema}.turn
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (pg_sequence_last_value('{schema}.armed'::regclass) <> 0)
    EXECUTE FUNCTION {schema}.wake_for_turn();
ALTER TABLE {schema}.turn ENABLE ALWAYS TRIGGER wake;

-- The limits of a type: of its own, or of its domain. No row: it has none.
CREATE FUNCTION {schema}.limits_of(p_domain text, p_type text)
RETURNS TABLE (own text, shared text[])
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN QUERY
    SELECT t.own, t.shared FROM {schema}.limited_type t
    WHERE t.domain = p_domain AND t.type IN (
        p_type, CASE WHEN {schema}.has_limits_of_domain(p_type) THEN '' END)
    ORDER BY t.type DESC LIMIT 1;
END
$$;

-- Those of these types ('domain type') that have a limit or, with p_waiting, commands that still
-- wait as if they had one.
CREATE FUNCTION {schema}.limited_types(p_types text[], p_waiting boolean) RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
BEGIN
    RETURN (
        SELECT coalesce(array_agg(t.name), '{}') FROM (
            SELECT name, split_part(name, ' ', 1) AS domain, split_part(name, ' ', 2) AS type
            FROM unnest(p_types) n (name)) t
        WHERE EXISTS (SELECT FROM {schema}.limits_of(t.domain, t.type))
            OR p_waiting AND EXISTS (
                SELECT FROM {schema}.limited w WHERE w.domain = t.domain AND w.type = t.type));
END
$$;

-- Moves commands of ready into their lanes: those that arrive and, for a claim that has locked
-- them, those that were there before their limit, or whose claim was released or lost. Their
-- positions are the ids that they had in ready, which are in the order of sending.
CREATE FUNCTION {schema}.move_into_lanes(p_ctids tid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.ready r WHERE r.ctid = ANY (p_ctids) RETURNING r.*
    )
    INSERT INTO {schema}.limited (
        token, losses, claimed_at, created_at, due_at, command_id, correlation_id, priority,
        attempts, max_attempts, domain, type, reply_to, headers, data, error_code, error_message,
        batch_id, caller, key, unique_key, lane_position, expires_at)
    SELECT token, losses + (claimer IS NOT NULL)::integer, claimed_at, created_at, due_at,
        command_id, correlation_id, priority, attempts, max_attempts, domain, type, reply_to,
        headers, data, error_code, error_message, batch_id, caller, key, unique_key,
        coalesce(lane_position, id), expires_at
    FROM gone;
END
$$;

-- Moves commands that have just arrived in ready into their lanes; called by the trigger of ready,
-- but not for those that may be suspects: claims decide that.
CREATE FUNCTION {schema}.move_arrived(p_domains text[], p_priorities smallint[], p_ids bigint[])
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
AS $$
    SELECT {schema}.move_into_lanes(ARRAY(
        SELECT r.ctid
        FROM unnest(p_domains, p_priorities, p_ids) a (domain, priority, id), LATERAL (
            SELECT r.ctid FROM {schema}.ready r
            WHERE r.domain = a.domain AND r.priority = a.priority AND r.id = a.id) r))
$$;

-- Gives each lane in which commands wait a turn, as its limits may have changed, and lets running
-- commands of types that have a limit now hold places. Called where limits change.
CREATE FUNCTION {schema}.limits_changed() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE {schema}.ready r SET lane_position = r.id
    WHERE r.ctid = ANY (ARRAY(
        SELECT q.ctid FROM {schema}.ready q
        WHERE (q.claimer IS NOT NULL OR q.losses > 0) AND q.lane_position IS NULL
            AND EXISTS (SELECT FROM {schema}.limits_of(q.domain, q.type))
        FOR UPDATE SKIP LOCKED));
    UPDATE {schema}.lane l SET
        opens_at = NULL, waits_for = NULL, waits_since = NULL, waits_priority = NULL
    WHERE l.opens_at IS NOT NULL OR l.waits_for IS NOT NULL;
    INSERT INTO {schema}.turn (domain, type, key, priority)
    SELECT w.domain, w.type, coalesce(w.key, ''), min(w.priority)
    FROM {schema}.limited w GROUP BY 1, 2, 3;
END
$$;

-- Removes up to p_size lanes that nothing waits in and no rate remembers, and returns their number;
-- also the states of shared limits that no rate remembers, and the turns of types that no longer
-- have a limit, which no claim looks at. Called by stewards. Skips locked ones.
CREATE FUNCTION {schema}.retain_lanes(p_size integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM {schema}.shared_state d WHERE d.ctid = ANY (ARRAY(
        SELECT s.ctid FROM {schema}.shared_state s WHERE s.next_start < clock_timestamp()
        FOR UPDATE SKIP LOCKED));
    DELETE FROM {schema}.turn d WHERE d.ctid = ANY (ARRAY(
        SELECT t.ctid
        FROM (SELECT DISTINCT domain, type FROM {schema}.turn) q
        JOIN {schema}.turn t ON t.domain = q.domain AND t.type = q.type
        WHERE cardinality({schema}.limited_types(ARRAY[q.domain || ' ' || q.type], true)) = 0
        FOR UPDATE OF t SKIP LOCKED));
    DELETE FROM {schema}.lane d WHERE d.ctid = ANY (ARRAY(
        SELECT l.ctid FROM {schema}.lane l
        WHERE l.next_start < clock_timestamp() AND l.opens_at IS NULL AND l.waits_for IS NULL
            AND NOT EXISTS (SELECT FROM {schema}.limited w
                            WHERE w.domain = l.domain AND w.type = l.type
                                AND coalesce(w.key, '') = l.key)
        LIMIT p_size
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
