-- The settings of functions, which no role may call until queries/installing.sql grants it. Run
-- at the end of each installation, as a function that an upgrade replaces loses its settings.
DO $$
DECLARE
    function regprocedure;
    settings text;
BEGIN
    FOR function, settings IN
        SELECT p.oid::regprocedure, string_agg(kind.settings, ' ')
        FROM pg_proc p JOIN (VALUES
            -- Finds rows by key, whatever the statistics say. What only claim_with_lanes calls has
            -- its settings.
            ('add_to_batch advance_processes batch_keys cancel_batch cancel_in_batch'
             ' cancel_process cancel_processes_of_batch claim claim_for_bridge claim_oldest'
             ' claim_row claim_suspect claim_with_lanes complete count_free_probes'
             ' count_held_probes count_process count_shared end_batch_now end_batches end_deferrals'
             ' end_step expire expire_step explain explain_limits find_due find_expired'
             ' find_full_key fitting fold_batch lock_bridge lock_processes lock_shared'
             ' lock_waiting move_into_lanes next_expiry next_opening note_changes note_lost'
             ' pick_messages promote refuse_message release renew renew_claim request_cancel'
             ' resolve_keys resolve_own retain_batches'
             ' retain_checkpoints retain_day retain_processes retain_unique retry_process'
             ' save_checkpoint send_messages set_aside settle'
             ' signal_process start_batches suspect_waits take take_messages take_unique'
             ' waiting_types',
             'SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off'
             ' SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off'),
            -- In the order of an index.
            ('batch_keys cancel_in_batch cancel_limited cancel_of_key cancel_ready cancel_scheduled'
             ' claim claim_oldest find_due find_expired find_full_key next_expiry'
             ' pick_messages promote retain_unique waiting_types',
             'SET enable_sort = off'),
            -- An error, and not an empty queue, if row security hides commands from the role.
            ('claim claim_oldest claim_suspect complete expire next_expiry promote release renew'
             ' renew_claim settle suspect_waits',
             'SET row_security = off'),
            -- The conditions that are given choose the index.
            ('cancel_limited cancel_of_key cancel_ready cancel_scheduled',
             'SET enable_seqscan = off SET enable_bitmapscan = off'
             ' SET plan_cache_mode = force_custom_plan SET jit = off'),
            ('resolve_chunk', 'SET plan_cache_mode = force_custom_plan'),
            -- In the order of an index that the conditions choose.
            ('count_newest list_domains list_types read_found read_queues walk',
             'SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off'
             ' SET enable_mergejoin = off SET enable_sort = off'
             ' SET plan_cache_mode = force_generic_plan SET jit = off'),
            -- Claims of other types go on if a claim's client has frozen.
            ('lock_shared', 'SET lock_timeout = ''50ms'''),
            -- Gives up where settlements would wait behind it; days begin in UTC.
            ('make_partitions retain_checkpoints retain_day retain_domain retain_domain_events'
             ' retain_incarnations retain_processes retain_unique',
             'SET lock_timeout = ''100ms'' SET timezone = ''UTC'' SET jit = off'),
            -- Every function whose text is parsed when it is called.
            (NULL, 'SET search_path = pg_catalog, pg_temp')
        ) kind (names, settings)
            ON kind.names IS NULL OR p.proname::text = ANY (string_to_array(kind.names, ' '))
        WHERE p.pronamespace = '{schema}'::regnamespace AND p.prosqlbody IS NULL
        GROUP BY p.oid
    LOOP
        EXECUTE format('ALTER FUNCTION %s %s', function, settings);
    END LOOP;
    -- Every role may call a function unless that is revoked.
    FOR function IN
        SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function);
    END LOOP;
END
$$;
