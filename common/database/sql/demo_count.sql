SELECT count(*), count(DISTINCT command_id)
FROM demo_transfer
WHERE command_id = ANY(%(command_ids)s);
