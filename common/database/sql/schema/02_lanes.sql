-- The tables of lanes, in which commands wait at their limits; see 14_lanes.sql.

-- The state of a lane that a claim has looked at.
CREATE TABLE {schema}.lane (
    domain {schema}.name NOT NULL,
    type {schema}.name NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- When the next start is due by its rate, if each came exactly on time: the theoretical arrival
    -- time of a leaky bucket.
    next_start timestamptz NOT NULL DEFAULT 'epoch',
    -- When its rate lets the first of those that wait start.
    opens_at timestamptz,
    -- The shared limit that it waits for, and since which turn.
    waits_for text COLLATE "C",
    waits_since bigint,
    waits_priority smallint,
    PRIMARY KEY (domain, type, key)
) WITH (fillfactor = 70);

CREATE INDEX lane_opens ON {schema}.lane (domain, type, opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX lane_waits ON {schema}.lane (waits_for, waits_priority, waits_since)
    WHERE waits_for IS NOT NULL;
CREATE INDEX lane_waits_by_type
    ON {schema}.lane (waits_for, domain, type, waits_priority, waits_since)
    WHERE waits_for IS NOT NULL;

-- The state of a limit that several types share. node: 0, or the node for which it counts.
CREATE TABLE {schema}.shared_state (
    name text COLLATE "C",
    node bigint,
    next_start timestamptz NOT NULL DEFAULT 'epoch',
    -- The latest turn that a claim has given to a lane of a type that it does not take.
    offered_domain text COLLATE "C",
    offered_type text COLLATE "C",
    offered_priority smallint,
    offered_turn bigint,
    PRIMARY KEY (name, node)
) WITH (fillfactor = 70);

-- Lanes that claims have to look at, in this order.
CREATE TABLE {schema}.turn (
    id bigint GENERATED ALWAYS AS IDENTITY,
    domain {schema}.name NOT NULL,
    type {schema}.name NOT NULL,
    key text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    PRIMARY KEY (domain, type, priority, id)
) WITH (
    -- Claims begin at the first turn: those that were used must not stay in front of it.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
