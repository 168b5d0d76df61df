# shellcheck shell=bash
# Sourced by the scripts beside it: makes the .venv in the root of the project, once, and keeps it up to date.
#
#   prepare ""     what `scheduler` itself needs
#   prepare dev    the tools for checking and testing as well
#
# Afterwards $root and $python are set. The caller's environment and directory stay as they are. When nothing has
# changed it costs a few milliseconds: the stamp in .venv names the place, the interpreter and a hash of all that
# decides what is installed. PYTHON=… chooses the interpreter of the first set-up; remove .venv to choose anew.

root=$(readlink -f "${BASH_SOURCE[0]}")
root=${root%/scripts/*}
venv=$root/.venv
python=$venv/bin/python
log=$root/.venv.log

prepare() {
    is_prepared "$1" && return
    if ! : 2>/dev/null >>"$root/.venv.lock"; then
        give_up "cannot write to $root, where .venv has to be made: take a copy of the project that is yours."
    fi
    # The lock ends with this block: what is started afterwards must not hold it.
    {
        flock 9
        is_prepared "$1" || set_up "$1"
    } 9>"$root/.venv.lock" || exit
}

is_prepared() {
    local stamp=
    [[ -x $python && -r $venv/.stamp ]] && stamp=$(<"$venv/.stamp")
    [[ -n $stamp && ($stamp == "$(state_of dev)" || $stamp == "$(state_of "$1")") ]]
}

# One line: the extras, a hash of what decides what is installed, and where: a venv survives neither being moved
# nor its interpreter being replaced.
state_of() {
    [[ -n ${content:=} ]] || content=$(cat "$root"/{pyproject.toml,requirements.txt,scripts/_venv.sh} | sha256sum)
    printf '%s %s %s' "extras=$1" "${content%% *}" "$(place)"
}

place() { printf '%s in %s' "$(readlink -f "$python")" "$root"; }

set_up() {
    local extras=$1
    # Whoever had the tools for testing keeps them.
    [[ $(cat "$venv/.stamp" 2>/dev/null) == extras=dev* ]] && extras=dev
    if ! is_usable; then
        make_venv 9>&-
    fi
    rm -f "$venv/.stamp"
    install "$extras" 9>&-
    state_of "$extras" >"$venv/.stamp.part" && mv "$venv/.stamp.part" "$venv/.stamp"
}
