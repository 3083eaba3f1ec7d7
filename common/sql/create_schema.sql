CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE {schema}.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
