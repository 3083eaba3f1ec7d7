# Sourced by the other scripts: the tests in six parts that run in parallel.

# Set in many containers: each part of the suite would compile all tests again.
unset PYTHONDONTWRITEBYTECODE

# The names of the parts that failed, and of what else did.
failures=""

# run_in_parts COMMAND...: COMMAND runs pytest with the arguments that it gets. Fleets mostly wait:
# the other tests run meanwhile. The parts take about the same time; if one ended long after the
# others, it would use one of the processors.
run_in_parts() {
    local outputs place names=() pids=() pytest=("$@") tests=$root/tests
    local file with_fleets first=() second=()
    local fleets="fleet and not long" others="not fleet and not long"
    # For the hundreds of processes that tests start, which keep no compiled file.
    "$venv/bin/python" -m compileall -q -x /test_ "$root"/{common,worker,supervisor,scripts,tests}
    outputs=$(mktemp -d)
    # run_part MARKS FILES...: for each file that is an argument, pytest would walk the whole directory.
    run_part() {
        CMDBUS_TEST_FILES=$(printf '%s\n' "${@:2}") "${pytest[@]}" -m "$1" "$tests"
    }
    # begin PART MARKS FILES...: in the background.
    begin() {
        CMDBUS_TEST_BESIDE=-$1 run_part "${@:2}" >"$outputs/$1" 2>&1 &
        names+=("$1")
        pids+=("$!")
    }
    # Only files with fleets: to import the others takes longer than the start of a fleet.
    mapfile -t with_fleets < <(grep -lr --include 'test_*.py' 'mark\.fleet' "$tests")
    for file in "${with_fleets[@]}"; do
        case ${file##*/} in
            test_[a-e]* | test_fleet_[a-n]*) first+=("$file") ;;
            *) second+=("$file") ;;
        esac
    done
    begin fleets "$fleets" "${first[@]}"
    begin more-fleets "$fleets" "${second[@]}"
    begin others-a-c "$others" "$tests"/apps/*/test_*.py "$tests"/test_[a-c]*.py
    begin others-d-m "$others" "$tests"/test_[d-m]*.py
    begin others-n-se "$others" "$tests"/test_[n-r]*.py "$tests"/test_s[a-e]*.py
    run_part "$others" "$tests"/test_s[f-z]*.py "$tests"/test_[t-z]*.py || failures+=" others-sf-z"
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
