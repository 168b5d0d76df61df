# shellcheck shell=bash
# Sourced by the scripts beside it: makes the .venv in the project's root, once, and keeps it up to date.
#
#   prepare ""     with what `scheduler` itself needs
#   prepare dev    with the tools for checking and testing as well
#   prepare_plugins    after it: with Ray and the tools that plugins/ is for, as far as they install here
#
# Afterwards $python is its interpreter and $root the project; the caller's directory and environment are as they
# were. When nothing has changed it costs a few milliseconds and starts no Python: a stamp says what was installed.
# PYTHON=… chooses the interpreter when .venv is made; remove .venv to choose anew.

root=$(readlink -f "${BASH_SOURCE[0]}")
root=${root%/scripts/*}
venv=$root/.venv
python=$venv/bin/python
log=$root/.venv.log

prepare() {
    wanted=$(cat "$root"/{pyproject.toml,requirements.txt,scripts/_venv.sh} | sha256sum)
    is_up_to_date "$1" && return
    : 2>/dev/null >>"$root/.venv.lock" ||
        give_up "$root cannot be written to, and .venv has to be made there: use a copy of the project that is yours."
    # Everything started inside this block holds the lock too, so it outlives a killed script; after the block it is free.
    {
        flock -n 9 2>/dev/null || { say "waiting for another start that sets up $venv"; flock 9; }
        is_up_to_date "$1" || set_up "$1"
    } 9>>"$root/.venv.lock"
}

prepare_plugins() {
    local mark now sweeper=$venv/sweeper
    now=$(cat "$root"/{,plugins/}pyproject.toml | sha256sum) mark=$venv/.plugins
    [[ -r $mark && $(<"$mark") == "$now" ]] && return
    say "installing Ray, and the tools that plugins/ is for, into $venv"
    rm -rf "$sweeper"
    if install_extra plugins/ test && install_extra plugins/ test-sweeper --no-deps --target "$sweeper" &&
        install_extra "" ray; then
        printf '%s' "$now" >"$mark"
    else
        say "not all of them could be installed (see $log): the tests of those that are missing are skipped"
    fi
}

# The requirements of an extra of a folder's distribution, but not this itself: the tests take it from the checkout.
install_extra() {
    local wanted
    mapfile -t wanted < <("$python" -c '
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
sys.stdout.writelines(f"{one}\n" for one in project["optional-dependencies"][sys.argv[2]])' \
        "$root/${1}pyproject.toml" "$2")
    "$python" -I -m pip install -q --disable-pip-version-check --retries 2 "${@:3}" "${wanted[@]}" >>"$log" 2>&1
}

say() { printf '%s\n' "$*" >&2; }
give_up() { say "$*"; exit 2; }

# A venv survives neither being moved nor its interpreter being replaced.
place() { printf '%s in %s' "$(readlink -f "$python")" "$root"; }

read_stamp() {
    kept_place='' kept='' kept_extra=''
    [[ -r $venv/.stamp ]] && { read -r kept_place; read -r kept; read -r kept_extra; } <"$venv/.stamp"
}

is_up_to_date() {
    [[ -x $python ]] || return
    read_stamp
    [[ $kept == "$wanted" && $kept_place == "$(place)" && ( -z $1 || $kept_extra == "$1" ) ]]
}

set_up() {
    read_stamp
    if [[ ! -e $venv || ( -e $venv/.made-by-scripts && $kept_place != "$(place)" ) ]]; then
        make_venv  # also after an interrupted set-up, which has left no stamp
    elif [[ $(probe "$python") == [!01]* ]]; then
        give_up "$venv was not made by these scripts and holds no Python 3.11 or newer: move it away and start again."
    fi
    rm -f "$venv/.stamp"
    install "${1:-$kept_extra}"  # an environment that had the tools for testing keeps them
    printf '%s\n' "$(place)" "$wanted" "${1:-$kept_extra}" >"$venv/.stamp.part"
    mv "$venv/.stamp.part" "$venv/.stamp"
}

make_venv() {
    choose_python
    say "setting up $venv with Python $version ($chosen): once, and it takes about a minute"
    rm -rf "$venv"
    mkdir "$venv" || give_up "$venv could not be made: the line above says why."
    : >"$venv/.made-by-scripts"
    create_venv >"$log" 2>&1 ||
        give_up "Python $version ($chosen) could not fill $venv ($(tail -n 1 "$log")): install its venv module" \
            "(on Debian and Ubuntu: apt install python3-venv) or virtualenv, or name another one with PYTHON=…"
}

create_venv() {
    if [[ $kind == 0 ]]; then
        "$chosen" -I -m venv "$venv"
    elif "$chosen" -c 'import virtualenv' 2>/dev/null; then
        "$chosen" -m virtualenv "$venv"
    elif command -v virtualenv >/dev/null; then
        virtualenv -p "$chosen" "$venv"
    elif command -v uv >/dev/null; then
        uv venv --seed --allow-existing -p "$chosen" "$venv"
    else
        echo "it has no ensurepip and there is no virtualenv" && return 1
    fi
}

install() {
    say "installing what is needed into $venv"
    (
        cd "$root" && unset PIP_TARGET PIP_PREFIX && export PIP_USER=0
        "$python" -I -m pip --version || "$python" -I -m ensurepip || exit
        "$python" -I -m pip install -q --disable-pip-version-check --retries 2 -e ".${1:+[$1]}" || exit
        "$python" -I -m compileall -q scheduler gpu_batch_scheduler  # pip leaves that to the first start, which may not be allowed to
    ) >"$log" 2>&1 && return
    give_up "pip could not install what is needed ($(grep ERROR: "$log" | tail -n 1 | sed "s/^ *//"); all it said is in $log):" \
        "connect this machine to the network, or set PIP_INDEX_URL or PIP_FIND_LINKS to a mirror or a directory" \
        "of wheels, and start again."
}

choose_python() {
    local found
    found=$(survey | sort -k1,1n -k2,2n -k3,3rV)
    read -r kind _ version chosen <<<"$found"
    if [[ ${kind:-2} == 2 ]]; then
        found=$(cut -d' ' -f3 <<<"$found" | sort -uV | paste -sd' ')
        give_up "scheduler needs Python 3.11 or newer and found ${found:-none} here; any of these gives one without" \
            "root: uv (uv python install 3.13), miniforge (its installer writes into your home directory only)" \
            "or pyenv (pyenv install 3.13); then start again, if need be with PYTHON=/path/to/python."
    fi
    [[ -z ${PYTHON-} || $chosen == "$PYTHON" ]] || say "PYTHON=$PYTHON cannot be used; going on without it"
}

# One line per Python: 0 usable, 1 usable but without its venv module, 2 not usable; rank; version; command.
survey() {
    local rank=0 candidate answer
    while read -r candidate; do
        (( rank += rank < 3 ))  # the three that the caller would start come first, then whichever is newest
        answer=$(probe "$candidate") || continue
        printf '%s %s %s %s\n' "${answer% *}" "$rank" "${answer#* }" "$candidate"
    done < <(candidates)
}

candidates() {
    local conda
    printf '%s\n' "${PYTHON-}" python3 python python3.14 python3.13 python3.12 python3.11
    printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python
    printf '%s\n' "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"/*/bin/python3
    for conda in "${CONDA_PREFIX:-$HOME/miniforge3}" {"$HOME",/opt}/{conda,miniforge3,miniconda3,mambaforge,anaconda3}; do
        printf '%s\n' "$conda"/bin/python "$conda"/envs/*/bin/python
    done
}

# Prereleases lack wheels, and other implementations than CPython lack some of them.
probe() {
    command -v "$1" >/dev/null && (cd / && "$1" -c '
import sys
usable = sys.version_info >= (3, 11) and sys.version_info[3] == "final" and sys.implementation.name == "cpython"
try:
    import ensurepip, venv
except ImportError:
    ensurepip = None
sys.stdout.write("%d %d.%d.%d" % (((0 if ensurepip else 1) if usable else 2,) + tuple(sys.version_info[:3])))
') 2>/dev/null </dev/null
}
