SELECT {schema}.settle(
    %(domains)s::text[], %(priorities)s::smallint[], %(ids)s::bigint[],
    %(tokens)s::bigint[], %(command_ids)s::uuid[], %(claimer)s,
    %(kinds)s::text[], %(attempts)s::smallint[], %(losses)s::smallint[],
    %(max_attempts)s::smallint[], %(results)s::json[],
    %(delays)s::double precision[], %(codes)s::text[], %(messages)s::text[],
    %(details)s::json[]);
