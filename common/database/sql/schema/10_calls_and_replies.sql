-- How programs get the outcomes of commands: calls, and replies that are read outside of a fleet.

-- Wakes the bus whose call waits for a command; called where a command with a caller ends or comes
-- to troubleshooting. Any number makes a channel's name that is short enough.
CREATE FUNCTION {schema}.wake_caller(p_caller bigint, p_command_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM {schema}.notify(
        '{channel}_c' || to_hex(p_caller & 4503599627370495), p_command_id::text);
END
$$;

-- The state of a command whose id the bus has made; without a status if there is none. Producers
-- may read nothing else of a command: they know only those of such ids that they have sent, because
-- each has 62 random bits.
CREATE FUNCTION {schema}.outcome(
    p_domain text, p_command_id uuid,
    OUT status text, OUT result text, OUT code text, OUT message text, OUT details text
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
AS $$
BEGIN
    IF NOT {schema}.has_mark(p_command_id) THEN
        RETURN;
    END IF;
    SELECT c.status, c.result::text, c.error_code, c.error_message
    INTO status, result, code, message
    FROM {schema}.command c
    WHERE c.domain = p_domain AND c.command_id = p_command_id
    LIMIT 1;
    IF status IN ('FAILED', 'IN_TROUBLESHOOTING_QUEUE') THEN
        SELECT (e.details -> 'details'::text)::text INTO details
        FROM {schema}.event e
        WHERE e.domain = p_domain AND e.command_id = p_command_id
            AND e.kind IN ('BUSINESS_RULE_FAILED', 'MOVED_TO_TROUBLESHOOTING_QUEUE')
        ORDER BY e.id DESC
        LIMIT 1;
    END IF;
END
$$;

-- Whether a node handles the replies of a domain: one that has renewed its leases, or waits for
-- work of the domain and is not known to lack the handler (a node that waits renews nothing). A
-- reader of replies waits, too, and reads no timers.
CREATE FUNCTION {schema}.replies_are_handled(p_domain text) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
    SELECT {schema}.is_handled(p_domain, 'Reply') OR EXISTS (
        SELECT FROM {schema}.waiter w
        WHERE w.armed_until > clock_timestamp() AND w.reads_at > '-infinity'
            AND w.bits & {schema}.domain_bit(p_domain) <> 0
            AND NOT EXISTS (
                SELECT FROM {schema}.node n
                WHERE n.id = w.node AND (p_domain || ' Reply') <> ALL (n.types)))
$$;

-- Renews one claim of p_claimer; called by a reader of replies. False if the claim is lost. Waits
-- for a locked row.
CREATE FUNCTION {schema}.renew_claim(
    p_domain text, p_priority smallint, p_id bigint, p_token bigint, p_command_id uuid,
    p_claimer bigint, p_lease interval
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE {schema}.ready r SET lease_until = clock_timestamp() + p_lease
    WHERE r.domain = p_domain AND r.priority = p_priority AND r.id = p_id
        AND r.token = p_token AND r.claimer = p_claimer
        AND r.command_id IS NOT DISTINCT FROM p_command_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE {schema}.lease l SET ends_at = clock_timestamp() + l.length
    WHERE l.claimer = p_claimer;
    RETURN true;
END
$$;

-- Settles a reply that a program has read: COMPLETED or, with p_code, TROUBLE. False if the claim
-- is lost.
CREATE FUNCTION {schema}.settle_reply(
    p_domain text, p_priority smallint, p_id bigint, p_token bigint, p_command_id uuid,
    p_claimer bigint, p_attempts smallint, p_losses smallint, p_max_attempts smallint,
    p_code text, p_message text, p_batch_id uuid
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM {schema}.ensure_partition();
    RETURN cardinality({schema}.settle(
        ARRAY[p_domain], ARRAY[p_priority], ARRAY[p_id], ARRAY[p_token], ARRAY[p_command_id],
        p_claimer, ARRAY[CASE WHEN p_code IS NULL THEN 'COMPLETED' ELSE 'TROUBLE' END],
        ARRAY[p_attempts], ARRAY[p_losses], ARRAY[p_max_attempts],
        ARRAY[CASE WHEN p_code IS NULL THEN 'null'::json END], ARRAY[NULL::double precision],
        ARRAY[p_code], ARRAY[p_message],
        ARRAY[CASE WHEN p_code IS NOT NULL THEN json_build_object('reason', p_code) END],
        CASE WHEN p_batch_id IS NOT NULL THEN ARRAY[p_batch_id] END)) = 0;
END
$$;
