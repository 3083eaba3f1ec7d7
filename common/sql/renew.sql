SELECT {schema}.renew(
    %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[], %(tokens)s::bigint[],
    %(lease)s);
