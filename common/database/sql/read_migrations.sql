-- A schema that was made before digests were recorded has no such column.
SELECT version, name, to_jsonb(m) ->> 'digest'::text
FROM {schema}.migration m
ORDER BY version;
