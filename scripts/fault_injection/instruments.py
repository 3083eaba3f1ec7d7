"""What a run adds to its database to see everything that happens there: each claim, each end
of a claim and each move of a command, in the transaction that does it and with its session; and the
table that handlers write their effects to.
"""

import psycopg

_SCHEMA = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.effect (
    command_id uuid NOT NULL,
    run text NOT NULL,
    session text NOT NULL DEFAULT current_setting('application_name'),
    xid bigint NOT NULL DEFAULT txid_current()
);
-- Rows of commands that write several, one after the other.
CREATE TABLE chaos.iteration (command_id uuid NOT NULL, number integer NOT NULL);
CREATE TABLE chaos.move (
    number bigint GENERATED ALWAYS AS IDENTITY,
    began timestamptz NOT NULL DEFAULT statement_timestamp(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    xid bigint NOT NULL DEFAULT txid_current(),
    session text NOT NULL DEFAULT current_setting('application_name'),
    what text NOT NULL,
    command_id uuid NOT NULL,
    token bigint NOT NULL,
    token_before bigint,
    claimer bigint,
    claimer_before bigint,
    lease_before timestamptz,
    due_at timestamptz,
    attempts integer NOT NULL,
    claimed_at timestamptz
);
CREATE TABLE chaos.limit_change (
    number bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    name text NOT NULL,
    concurrency integer,
    starts_per_second double precision,
    burst integer
);
CREATE TABLE chaos.probe (
    number bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    breaker text NOT NULL,
    held integer NOT NULL,
    most integer NOT NULL
);

-- Rows that handlers lock in opposite order, and a table that changes while they read it.
CREATE TABLE chaos.twin (id integer PRIMARY KEY, n integer NOT NULL DEFAULT 0);
CREATE TABLE chaos.wide (n integer);

CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND NEW.claimer IS NOT NULL AND TG_ARGV[0] = 'ready' THEN
        -- Claimed where it waited at a limit.
        INSERT INTO chaos.move (what, command_id, token, token_before, claimer, due_at, attempts,
                                claimed_at)
        VALUES ('ready+', NEW.command_id, NEW.token - 1, NULL, NULL, NEW.due_at, NEW.attempts,
                NULL),
            ('claim', NEW.command_id, NEW.token, NEW.token - 1, NEW.claimer, NEW.due_at,
                NEW.attempts, NEW.claimed_at);
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO chaos.move (what, command_id, token, due_at, attempts)
        VALUES (TG_ARGV[0] || '+', NEW.command_id, NEW.token, NEW.due_at, NEW.attempts);
    ELSIF TG_OP = 'DELETE' AND TG_ARGV[0] = 'ready' THEN
        INSERT INTO chaos.move (what, command_id, token, claimer_before, lease_before, attempts)
        VALUES ('ready-', OLD.command_id, OLD.token, OLD.claimer, OLD.lease_until, OLD.attempts);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO chaos.move (what, command_id, token, attempts)
        VALUES (TG_ARGV[0] || '-', OLD.command_id, OLD.token, OLD.attempts);
    ELSE
        INSERT INTO chaos.move (what, command_id, token, token_before, claimer, claimer_before,
                                lease_before, due_at, attempts, claimed_at)
        VALUES (CASE WHEN NEW.claimer IS NULL THEN 'release' ELSE 'claim' END, NEW.command_id,
                NEW.token, OLD.token, NEW.claimer, OLD.claimer, OLD.lease_until, NEW.due_at,
                NEW.attempts, NEW.claimed_at);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER chaos_claim AFTER UPDATE ON cmdbus.ready FOR EACH ROW
    WHEN (OLD.token IS DISTINCT FROM NEW.token OR OLD.claimer IS DISTINCT FROM NEW.claimer)
    EXECUTE FUNCTION chaos.note('ready');

CREATE FUNCTION chaos.note_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO chaos.limit_change (name) VALUES (OLD.name);
    ELSE
        INSERT INTO chaos.limit_change (name, concurrency, starts_per_second, burst)
        VALUES (NEW.name, NEW.concurrency, NEW.starts_per_second, NEW.burst);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER chaos_limit AFTER INSERT OR UPDATE OR DELETE ON cmdbus.limit_in_force
    FOR EACH ROW EXECUTE FUNCTION chaos.note_limit();

CREATE FUNCTION chaos.note_probe() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.probe (breaker, held, most)
    SELECT b.name, (SELECT count(*) FROM cmdbus.breaker_probe p WHERE p.breaker = b.name), b.probes
    FROM cmdbus.breaker b WHERE b.name = NEW.breaker;
    RETURN NULL;
END
$$;
CREATE TRIGGER chaos_probe AFTER INSERT ON cmdbus.breaker_probe
    FOR EACH ROW EXECUTE FUNCTION chaos.note_probe();
"""
_TRIGGER = (
    "CREATE TRIGGER chaos_{table} AFTER INSERT OR DELETE ON cmdbus.{table}"
    " FOR EACH ROW EXECUTE FUNCTION chaos.note('{table}')"
)
_TABLES = ("ready", "scheduled", "limited", "troubleshooting", "finished")

#: Those that claims look at.
TURNS = (
    "FROM cmdbus.turn"
    " WHERE cardinality(cmdbus.limited_types(ARRAY[domain || ' ' || type], true)) > 0"
)
#: By the names for --sabotage: in which functions which text is replaced by which.
SABOTAGES = {
    "fence": {
        "settle": {"AND r.token = o.token": "", "AND r.claimer = p_claimer": ""},
        "complete": {"AND r.token = o.token": "", "AND r.claimer = p_claimer": ""},
        "release": {"AND r.token = k.token": "", "AND r.claimer = p_claimer": ""},
        "renew": {"AND r.token = k.token": "", "AND r.claimer = k.claimer": ""},
    },
    # Each second claim is never renewed.
    "renewals": {
        "renew": {"AND r.claimer = k.claimer": "AND r.claimer = k.claimer AND k.id % 2 = 0"}
    },
    # The first outcomes of each tenth row are never settled, as if another session locked it.
    "stops": {
        "settle": {"AND r.token = o.token": "AND r.token = o.token AND r.token + r.id % 10 > 1"},
        "complete": {"AND r.token = o.token": "AND r.token = o.token AND r.token + r.id % 10 > 1"},
    },
    # Some commands are not counted for their batch.
    "tally": {"count_ended": {"GROUP BY": "AND random() < 0.8 GROUP BY"}},
    # Batches send nothing when they are complete.
    "closings": {
        "fold_batch": {
            "send_request(batch.on_complete, p_batch_id)": "forget_request(batch.on_complete)"
        }
    },
    # A deadline lets the process go on, and cancels nothing.
    "deadlines": {
        "expire_step": {
            "end_awaited(process, NULL, reason)": "resume_process(process) IS NULL",
            "SET status = 'COMPENSATING',": "SET status = 'COMPENSATING', awaited_id = NULL,",
        }
    },
    # Some checkpoints are lost, and the one before them stays.
    "checkpoints": {
        "save_checkpoint": {
            "SET data = EXCLUDED.data": "SET data = CASE WHEN random() < 0.3 THEN c.data"
            " ELSE EXCLUDED.data END"
        }
    },
    # A lane has as many places as if none were taken.
    "places": {
        "measure_lanes": {
            "f.concurrency - c.running": "f.concurrency",
            "c.running > 0 OR h.held": "h.held",
        }
    },
    # Who ends does not say that a place is free.
    "turns": {
        "complete": {"IF lanes IS NOT NULL": "IF false"},
        "settle": {"IF lanes IS NOT NULL": "IF false"},
    },
    # More probes are let through than the terms say.
    "probes": {"count_free_probes": {"greatest(0, p_probes - (": "greatest(0, p_probes + 3 - ("}},
    # Some ticks are left out.
    "ticks": {
        "send_ticks": {
            "following timestamptz := p_next;": "following timestamptz := p_next"
            " + (random() < 0.3)::integer * interval '2 s';"
        }
    },
    # Some messages are taken and lost, and what comes back has lost its headers.
    "bridges": {
        "take_messages": {
            "new_id() AS command_id FROM gone g": "new_id() AS command_id FROM gone g"
            " WHERE random() < 0.9"
        },
        "send_messages": {"h.own || h.more": "h.more"},
    },
    "losses": {
        "release": {"coalesce(o.losses, 0)": "0", "WHERE losses IS NOT NULL": "WHERE false"}
    },
}
_SOURCE = (
    "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace"
    " WHERE n.nspname = 'cmdbus' AND proname = %s"
)


def install(connection: psycopg.Connection) -> None:
    connection.execute(_SCHEMA.encode())
    for table in _TABLES:
        connection.execute(_TRIGGER.format(table=table).encode())


def sabotage(connection: psycopg.Connection, name: str) -> None:
    """Breaks the bus: the checks of a run must find that."""
    for function, replacements in SABOTAGES[name].items():
        [(source,)] = connection.execute(_SOURCE, (function,)).fetchall()
        for text, replacement in replacements.items():
            assert text in source, f"{function} does not contain {text!r}"
            source = source.replace(text, replacement)
        connection.execute(source.encode())
