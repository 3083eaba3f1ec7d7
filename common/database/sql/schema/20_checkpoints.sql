-- Writes and removes what context.checkpoint keeps for the next execution of a command: rows of the
-- table `checkpoint` (02_commands.sql).

-- Keeps the checkpoint of a claim, instead of an earlier one of its command. False if the claim was
-- lost. Outside of a handler's transaction p_locked keeps the claim for as long as this takes, so
-- that none is kept after the next claim has read it; in the transaction, which is rolled back
-- unless it settles the claim, nothing is locked that others wait for.
CREATE FUNCTION {schema}.save_checkpoint(
    p_domain text, p_priority smallint, p_id bigint, p_token bigint, p_command_id uuid,
    p_claimer bigint, p_data json, p_locked boolean
) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF p_locked THEN
        PERFORM FROM {schema}.ready r
        WHERE r.domain = p_domain AND r.priority = p_priority AND r.id = p_id
            AND r.token = p_token AND r.claimer = p_claimer
        FOR SHARE;
    END IF;
    INSERT INTO {schema}.checkpoint AS c (domain, command_id, created_at, data)
    SELECT r.domain, r.command_id, r.created_at, p_data FROM {schema}.ready r
    WHERE r.domain = p_domain AND r.priority = p_priority AND r.id = p_id
        AND r.token = p_token AND r.claimer = p_claimer
        AND r.command_id IS NOT DISTINCT FROM p_command_id
    ON CONFLICT (domain, command_id) DO UPDATE SET data = EXCLUDED.data,
        saved_at = EXCLUDED.saved_at, created_at = EXCLUDED.created_at;
    RETURN FOUND;
END
$$;

-- Removes up to p_size checkpoints of commands that have ended or are gone, and returns their
-- number; called by stewards. Skips locked ones.
CREATE FUNCTION {schema}.retain_checkpoints(p_size integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    removed bigint;
BEGIN
    -- One statement: a command on its way between two tables is seen in one of them.
    DELETE FROM {schema}.checkpoint k WHERE k.ctid = ANY (ARRAY(
        SELECT c.ctid FROM {schema}.checkpoint c
        WHERE NOT EXISTS (SELECT FROM {schema}.ready r
                          WHERE r.domain || '' = c.domain AND r.command_id = c.command_id)
            AND NOT EXISTS (SELECT FROM {schema}.scheduled s
                            WHERE s.domain = c.domain AND s.command_id = c.command_id)
            AND NOT EXISTS (SELECT FROM {schema}.limited l
                            WHERE l.domain || '' = c.domain AND l.command_id = c.command_id)
            AND NOT EXISTS (SELECT FROM {schema}.troubleshooting t
                            WHERE t.domain = c.domain AND t.command_id = c.command_id)
        LIMIT p_size
        FOR UPDATE OF c SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
