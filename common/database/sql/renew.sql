SELECT {schema}.renew(
    %(command_ids)s::uuid[], %(ids)s::bigint[], %(tokens)s::bigint[], %(claimers)s::bigint[],
    %(node)s, %(lease)s, %(types)s::text[]);
