-- How many commands are in which state, by domain: at most 10,000 rows, those with the most
-- commands first, as a role that may send can name any number of domains. Reads all of ready,
-- scheduled and troubleshooting.
SELECT domain, state, depth
FROM (
    SELECT domain::text, CASE WHEN lease_until > clock_timestamp() THEN 'in_progress'
                              ELSE 'ready' END AS state, count(*) AS depth
    FROM {schema}.ready GROUP BY 1, 2
    UNION ALL
    SELECT domain::text, 'scheduled', count(*) FROM {schema}.scheduled GROUP BY 1
    UNION ALL
    SELECT domain, 'troubleshooting', count(*) FROM {schema}.troubleshooting GROUP BY 1
) counts
ORDER BY depth DESC LIMIT 10000;
