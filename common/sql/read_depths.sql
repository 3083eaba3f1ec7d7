-- How many commands are in which state, by domain. Reads all of ready, scheduled and
-- troubleshooting.
SELECT domain, CASE WHEN lease_until > clock_timestamp() THEN 'in_progress' ELSE 'ready' END AS state,
    count(*)
FROM {schema}.ready GROUP BY 1, 2
UNION ALL
SELECT domain, 'scheduled', count(*) FROM {schema}.scheduled GROUP BY 1
UNION ALL
SELECT domain, 'troubleshooting', count(*) FROM {schema}.troubleshooting GROUP BY 1;
