-- Keys of what a worker has claimed; reads all of ready, like find_claimed.
SELECT domain, priority, id, token, command_id, claimer
FROM {schema}.ready
WHERE claimer = %(claimer)s;
