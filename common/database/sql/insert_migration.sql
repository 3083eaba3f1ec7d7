INSERT INTO {schema}.migration (version, name, digest)
VALUES (%(version)s, %(name)s, %(digest)s);
