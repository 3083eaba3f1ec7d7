-- The demo's table.

-- name: demo_table
CREATE TABLE IF NOT EXISTS demo_transfer (
    command_id uuid NOT NULL,
    amount integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: demo_transfer
INSERT INTO demo_transfer (command_id, amount) VALUES (%(command_id)s, %(amount)s);

-- name: demo_count
SELECT count(*), count(DISTINCT command_id)
FROM demo_transfer
WHERE command_id = ANY(%(command_ids)s);
