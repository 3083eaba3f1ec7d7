# Sourced by the other scripts: the tests in three parts that run in parallel.

# The names of the parts that failed, and of what else did.
failures=""

# run_in_parts COMMAND...: COMMAND runs pytest with the arguments that it gets. Fleets and
# processes under test mostly wait: the other tests run meanwhile.
run_in_parts() {
    local outputs fleets processes part
    outputs=$(mktemp -d)
    CMDBUS_TEST_BESIDE=-fleets "$@" -m "fleet and not long" >"$outputs/fleets" 2>&1 &
    fleets=$!
    CMDBUS_TEST_BESIDE=-processes "$@" -m "process and not fleet and not long" \
        >"$outputs/processes" 2>&1 &
    processes=$!
    "$@" -m "not process and not fleet and not long" || failures+=" others"
    wait "$processes" || failures+=" processes"
    wait "$fleets" || failures+=" fleets"
    for part in processes fleets; do
        say "$part"
        cat "$outputs/$part"
    done
    rm -rf "$outputs"
}

# The last line of a run, whose outputs are long: what failed. 1 if anything did.
conclude() {
    say "${failures:+failed:}${failures:-passed}"
    [[ -z $failures ]]
}
