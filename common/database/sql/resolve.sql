SELECT {schema}.resolve(%(action)s, %(domain)s, %(command_id)s, %(operator)s, %(reason)s,
                        %(result)s::text::json, %(again)s);
