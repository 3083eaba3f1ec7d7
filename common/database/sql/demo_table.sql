CREATE TABLE IF NOT EXISTS demo_transfer (
    command_id uuid NOT NULL,
    amount integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
