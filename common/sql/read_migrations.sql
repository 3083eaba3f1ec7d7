-- A schema that was made before digests were recorded has no such column.
SELECT version, name, to_jsonb(m) ->> 'digest'
FROM {schema}.migration m
ORDER BY version;
