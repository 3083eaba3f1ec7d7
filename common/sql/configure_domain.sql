-- `given` names the settings that the caller spoke of; the others stay.
INSERT INTO {schema}.domain AS d (name, accepting, max_depth, warn_depth, keep)
VALUES (%(domain)s, coalesce(%(accepting)s, true), %(max_depth)s, %(warn_depth)s,
        coalesce(%(keep)s, interval '7 days'))
ON CONFLICT (name) DO UPDATE SET
    accepting = CASE WHEN 'accepting' = ANY(%(given)s) THEN EXCLUDED.accepting ELSE d.accepting END,
    max_depth = CASE WHEN 'max_depth' = ANY(%(given)s) THEN EXCLUDED.max_depth ELSE d.max_depth END,
    warn_depth = CASE WHEN 'warn_depth' = ANY(%(given)s) THEN EXCLUDED.warn_depth ELSE d.warn_depth END,
    keep = CASE WHEN 'keep' = ANY(%(given)s) THEN EXCLUDED.keep ELSE d.keep END;
