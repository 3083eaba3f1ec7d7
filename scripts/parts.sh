# Sourced by the other scripts: the tests in five parts that run in parallel.

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
    begin others-a-e "$others" "$tests"/apps/*/test_*.py "$tests"/test_[a-e]*.py
    begin others-f-ren "$others" "$tests"/test_[f-q]*.py "$tests"/test_ra*.py "$tests"/test_re[a-n]*.py
    run_part "$others" "$tests"/test_re[o-z]*.py "$tests"/test_r[f-z]*.py "$tests"/test_[s-z]*.py ||
        failures+=" others-rep-z"
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
