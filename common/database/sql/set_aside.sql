SELECT {schema}.set_aside(
    %(table)s, %(domain)s, %(priority)s::smallint, %(id)s, %(token)s, %(command_id)s,
    %(claimer)s::bigint, %(code)s, %(message)s);
