SELECT resolved, last, before
FROM {schema}.resolve_batch(%(action)s, %(domain)s, %(type)s, %(error_code)s, %(since)s, %(until)s,
                            %(count)s, %(bytes)s, %(operator)s, %(reason)s, %(result)s::text::json);
