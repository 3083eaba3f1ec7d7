SELECT {schema}.release(
    %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[], %(tokens)s::bigint[],
    %(command_ids)s::uuid[], %(claimer)s, %(losses)s::smallint[], %(reason)s, %(why)s);
