#!/bin/bash
# The product on other releases. Of Nova: our unit tests, and Nova's own tests of its libvirt driver with our driver
# in stock's place. Of Debian: our unit and functional tests, a UEFI guest, and the demo. Of what requirements.txt
# names, the lowest versions: the storage side's unit tests, and the storage service as a process.
# usage: tools/matrix.sh [31|32|33|34|debian13|lowest]...     all rows if none is named
#
# The packages of a release of Nova are those of tools/matrix/nova-ROW.txt, which says how it came to be; a Debian
# is made from the host's own apt sources. Environments and results are below $BOOTCACHE_HOME/matrix: what is there
# for the tree as it is now is not run again.
set -euo pipefail
# shellcheck source=tools/setup.sh
. "$(dirname "$0")/setup.sh"
# shellcheck source=tools/matrix/debian.sh
. "$TOP/tools/matrix/debian.sh"

ROWS=(31 32 33 34 debian13 lowest)
MATRIX=$BOOTCACHE_HOME/matrix

usage() { say "usage: tools/matrix.sh [${ROWS[*]}]..."; }

for row in "$@"; do
    case $row in
    -h | --help) usage; exit 0 ;;
    31 | 32 | 33 | 34 | debian13 | lowest) ;;
    *) usage; die "'$row' is not one of: ${ROWS[*]}" ;;
    esac
done
[ $# -eq 0 ] || ROWS=("$@")

# The environment of a row; VENV is its.
environment() { # ROW
    local packages=$TOP/tools/matrix/nova-$1.txt stamp=$VENV/.stamp want
    want=$(sha256sum <"$packages")
    if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
        say "== $1: installing Nova's release and its tests' packages"
        [ -x "$VENV/bin/python" ] || /usr/bin/python3 -m venv "$VENV"
        "$VENV/bin/pip" install -q --disable-pip-version-check --no-deps -r "$packages"
        rm -f "$MATRIX/$1"/*.json "$MATRIX/$1"/*.done
        echo "$want" >"$stamp"
    fi
    link_debian_bindings
    install_project
}

# All of the tree but what its programs leave in it.
tree_files() {
    (cd "$TOP" && find . \( -path ./.git -o -path ./doc/build -o -path ./demo-report -o -path ./bench-report \
        -o -name __pycache__ -o -name '.*_cache' -o -name .hypothesis \) -prune -o -type f -print0 | sort -z)
}

# What a result depends on: the tree, and the environment that a stamp stands for.
state_of() { # STAMP
    { tree_files | (cd "$TOP" && xargs -0 sha256sum); cat "$1"; } | sha256sum
}

# Run a part of a row unless it is done for this state of things; what came of it is in JSON.
part() { # ROW PART STATE COMMAND...
    local row=$1 name=$2 state=$3 results=$MATRIX/$1 begin=$SECONDS; shift 3
    [ "$(cat "$results/$name.done" 2>/dev/null)" != "$state" ] || return 0
    say "== $row: $name"
    rm -f "$results/$name.json" "$results/$name.done"
    # Its outcome is in the table.
    "$@" >"$results/$name.log" 2>&1 || true
    if [ -s "$results/$name.json" ]; then
        echo "$state" >"$results/$name.done"
    else
        tail -n 20 "$results/$name.log" >&2
        printf '{"ran": 0, "passed": 0, "failed": ["it did not come to its end; see %s"]}\n' "$results/$name.log" \
            >"$results/$name.json"
    fi
    say "== $row: $name: $((SECONDS - begin)) s"
}

nova_row() { # ROW
    local row=$1 results=$MATRIX/$1 state
    mkdir -p "$results/scratch"
    VENV=$results/venv
    environment "$row"
    state=$(state_of "$VENV/.stamp")
    # Nova's tests put eventlet in place as soon as they are imported; our own choose for themselves.
    part "$row" unit "$state" env -C "$TOP" OS_NOVA_DISABLE_EVENTLET_PATCHING=1 "PATH=$VENV/bin:$PATH" \
        "$VENV/bin/python" -W ignore -m tools.matrix.our_tests --other-versions --report "$results/unit.json" tests/unit
    part "$row" driver "$state" env -C "$results/scratch" "PYTHONPATH=$TOP" \
        "$VENV/bin/python" -W ignore -m tools.matrix.nova_tests --report "$results/driver.json"
}

# What the tests of row lowest need beside the storage service's own packages.
LOWEST_TOOLS=(build fixtures hypothesis packaging pbr pytest pytest-timeout setuptools)
LOWEST_FUNCTIONAL=(tests/functional/test_{install,service_start,cli_configuration,cli_old_service,messages}.py
    tests/functional/test_{notifications,exporter}.py)

# An environment of the storage service's own, without Nova and Glance. Its wheels are where test_install.py looks.
lowest_environment() { # RESULTS
    local results=$1 want
    want=$({ cat "$TOP"/requirements.txt "$TOP"/pyproject.toml "$TOP"/tools/constraints.txt "$TOP"/tools/matrix/lowest.py
        declare -p LOWEST_TOOLS; } | sha256sum)
    if [ "$(cat "$VENV/.stamp" 2>/dev/null)" != "$want" ]; then
        say "== lowest: installing the lowest versions of what is required"
        rm -rf "$VENV" "$results/wheels" "$results"/*.json "$results"/*.done
        /usr/bin/python3 -m venv "$VENV"
        "$VENV/bin/pip" install -q --disable-pip-version-check -c "$TOP/tools/constraints.txt" packaging
        "$VENV/bin/python" "$TOP/tools/storage_requirements.py" >"$results/wanted.txt"
        "$VENV/bin/python" "$TOP/tools/matrix/lowest.py" "$results/wanted.txt" "$TOP/tools/constraints.txt" "$results"
        "$VENV/bin/pip" install -q --disable-pip-version-check -c "$results/constraints.txt" \
            -r "$results/requirements.txt" "${LOWEST_TOOLS[@]}"
        "$VENV/bin/pip" wheel -q --disable-pip-version-check -w "$results/wheels" -c "$results/constraints.txt" \
            -r "$results/requirements.txt"
        touch "$results/wheels/.stamp"
        echo "$want" >"$VENV/.stamp"
    fi
    link_debian_bindings
}

lowest_row() { # ROW
    local row=$1 results=$MATRIX/$1 state without
    local run=(env -C "$TOP" "PATH=$MATRIX/$1/venv/bin:$PATH" "$MATRIX/$1/venv/bin/python" -W ignore
        -m tools.matrix.our_tests --other-versions)
    VENV=$results/venv
    lowest_environment "$results"
    state=$(state_of "$VENV/.stamp")
    mapfile -t without < <(cd "$TOP" && grep -rlE '^(from|import) (nova|glance)\b' --include='test_*.py' \
        tests/unit/bootcache tests/unit/glance_bootcache)
    part "$row" unit "$state" "${run[@]}" --report "$results/unit.json" -- "${without[@]/#/--ignore=}" \
        tests/unit/bootcache tests/unit/glance_bootcache
    part "$row" functional "$state" "${run[@]}" --report "$results/functional.json" -- \
        -k 'not theirs and not beside_nova' \
        "${LOWEST_FUNCTIONAL[@]}"
}

install_debian_packages
for row in "${ROWS[@]}"; do
    mkdir -p "$MATRIX/$row"
    exec 9>"$MATRIX/$row/lock"
    flock -n 9 || die "another tools/matrix.sh is at row $row"
    case $row in
    debian13) debian_row "$row" trixie ;;
    lowest) lowest_row "$row" ;;
    *) nova_row "$row" ;;
    esac
    exec 9>&-
done
/usr/bin/python3 "$TOP/tools/matrix/table.py" "$MATRIX" "${ROWS[@]}"
