# Sourced by the other scripts: the tests in three parts that run in parallel.

# run_in_parts COMMAND...: COMMAND runs pytest with the arguments that it gets. Fleets and
# processes under test mostly wait: the other tests run meanwhile. 1 if a part failed.
run_in_parts() {
    local outputs fleets processes part failed=0
    outputs=$(mktemp -d)
    CMDBUS_TEST_BESIDE=-fleets "$@" -m "fleet and not long" >"$outputs/fleets" 2>&1 &
    fleets=$!
    CMDBUS_TEST_BESIDE=-processes "$@" -m "process and not fleet and not long" \
        >"$outputs/processes" 2>&1 &
    processes=$!
    "$@" -m "not process and not fleet and not long" || failed=1
    wait "$processes" || failed=1
    wait "$fleets" || failed=1
    for part in processes fleets; do
        say "$part"
        cat "$outputs/$part"
    done
    rm -rf "$outputs"
    return "$failed"
}
