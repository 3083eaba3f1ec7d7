-- Bridges between queues of PGMQ and domains; see 23_bridges.sql.
CREATE TABLE {schema}.bridge (
    name text COLLATE "C" PRIMARY KEY CHECK (name = name::{schema}.name),
    -- As PGMQ names its tables: in lower case.
    queue text COLLATE "C" NOT NULL CHECK (queue = lower(queue) AND length(queue) BETWEEN 1 AND 47),
    -- As the operator spelled it: after version 1.13.0, PGMQ notifies by the name with which the
    -- queue was created.
    spelled text COLLATE "C" NOT NULL,
    -- 'in' moves messages of the queue into commands of the domain, 'out' commands into messages.
    direction text COLLATE "C" NOT NULL CHECK (direction IN ('in', 'out')),
    domain {schema}.name NOT NULL,
    -- NULL, outwards only: every type.
    type {schema}.name CHECK (type IS NOT NULL OR direction = 'out'),
    -- The domain that gets the replies, inwards only.
    reply_to {schema}.name CHECK (reply_to IS NULL OR direction = 'in'),
    batch_size integer NOT NULL CHECK (batch_size BETWEEN 1 AND 1000),
    operator text,
    reason text,
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- How many were moved, without those that were refused; both are written with the move.
    moved bigint NOT NULL DEFAULT 0,
    refused bigint NOT NULL DEFAULT 0,
    moved_at timestamptz,
    -- Why nothing moves now, and since when; NULL: nothing is wrong.
    error text,
    failed_at timestamptz,
    UNIQUE (queue, direction)
) WITH (fillfactor = 20);

-- Whether a bridge takes the commands of a type out of their domain.
CREATE FUNCTION {schema}.is_bridged(p_domain text, p_type text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM {schema}.bridge b
        WHERE b.direction = 'out' AND b.domain = p_domain AND coalesce(b.type, p_type) = p_type)
$$;
