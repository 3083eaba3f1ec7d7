SELECT domain, command_id, refusal
FROM {schema}.identify(%(domains)s::text[], %(command_ids)s::uuid[], %(call)s, %(brought)s);
