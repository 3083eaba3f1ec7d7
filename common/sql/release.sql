SELECT {schema}.release(
    %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[], %(tokens)s::bigint[],
    %(losses)s::smallint[], %(why)s);
