SELECT canceled, priority, id
FROM {schema}.cancel_ready(%(domain)s, %(type)s, %(since)s, %(until)s, %(priority)s::smallint,
                           %(id)s::bigint, %(count)s, %(bytes)s::bigint, %(operator)s, %(reason)s);
