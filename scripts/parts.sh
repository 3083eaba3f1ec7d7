# Sourced by the other scripts: the tests in five parts that run in parallel.

# Set in many containers: each part of the suite would compile all tests again.
unset PYTHONDONTWRITEBYTECODE

# The names of the parts that failed, and of what else did.
failures=""

# run_in_parts COMMAND...: COMMAND runs pytest with the arguments that it gets. Fleets and
# processes under test mostly wait: the other tests run meanwhile.
run_in_parts() {
    local outputs place names=() pids=() pytest=("$@")
    local fleets="fleet and not long" others="not process and not fleet and not long"
    # For the hundreds of processes that tests start, which keep no compiled file.
    "$venv/bin/python" -m compileall -q -x /test_ "$root"/{common,worker,supervisor,scripts,tests}
    outputs=$(mktemp -d)
    # begin PART ARGUMENTS...: in the background.
    begin() {
        CMDBUS_TEST_BESIDE=-$1 "${pytest[@]}" "${@:2}" >"$outputs/$1" 2>&1 &
        names+=("$1")
        pids+=("$!")
    }
    begin processes -m "process and not fleet and not long"
    begin fleets -m "$fleets" "$root"/tests/test_fleet_[a-q]*.py
    begin more-fleets -m "$fleets" --ignore-glob "$root/tests/test_fleet_[a-q]*.py" "$root/tests"
    begin others -m "$others" "$root"/tests/test_[a-q]*.py
    "${pytest[@]}" -m "$others" --ignore-glob "$root/tests/test_[a-q]*.py" "$root/tests" ||
        failures+=" more-others"
    for place in "${!names[@]}"; do
        wait "${pids[place]}" || failures+=" ${names[place]}"
        say "${names[place]}"
        cat "$outputs/${names[place]}"
    done
    rm -rf "$outputs"
}

# The last line of a run, whose outputs are long: what failed. 1 if anything did.
conclude() {
    say "${failures:+failed:}${failures:-passed}"
    [[ -z $failures ]]
}
