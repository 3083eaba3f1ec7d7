SELECT canceled, before, command_id
FROM {schema}.cancel_scheduled(%(domain)s, %(type)s, %(since)s, %(until)s, %(command_id)s,
                               %(count)s, %(bytes)s::bigint, %(operator)s, %(reason)s);
