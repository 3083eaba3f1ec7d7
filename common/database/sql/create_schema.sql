CREATE SCHEMA IF NOT EXISTS {schema};

CREATE TABLE {schema}.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    -- Of the migration's text, to tell it from another build's.
    digest text NOT NULL DEFAULT '',
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
