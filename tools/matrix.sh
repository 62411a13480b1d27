#!/bin/bash
# The product on several releases of Nova, each in an environment of its own: our unit tests, and Nova's own
# tests of its libvirt driver with our driver in stock's place.
# usage: tools/matrix.sh [31|32|33|34]...     all rows if none is named
#
# Each row's packages are those of tools/matrix/nova-ROW.txt, which says how it came to be. Environments and
# results are below $BOOTCACHE_HOME/matrix: what is there for the tree as it is now is not run again.
set -euo pipefail
# shellcheck source=tools/setup.sh
. "$(dirname "$0")/setup.sh"

ROWS=(31 32 33 34)
MATRIX=$BOOTCACHE_HOME/matrix

usage() { say "usage: tools/matrix.sh [${ROWS[*]}]..."; }

for row in "$@"; do
    case $row in
    -h | --help) usage; exit 0 ;;
    31 | 32 | 33 | 34) ;;
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

# Run a part of a row unless it is done for this tree; what came of it is in JSON.
part() { # ROW PART COMMAND...
    local row=$1 name=$2 want begin=$SECONDS; shift 2
    want=$({ tree; cat "$VENV/.stamp"; } | sha256sum)
    [ "$(cat "$MATRIX/$row/$name.done" 2>/dev/null)" != "$want" ] || return 0
    say "== $row: $name"
    rm -f "$MATRIX/$row/$name.json"
    # Its outcome is in the table.
    "$@" >"$MATRIX/$row/$name.log" 2>&1 || true
    [ -s "$MATRIX/$row/$name.json" ] || { tail -n 20 "$MATRIX/$row/$name.log" >&2; die "$row: $name did not come to its end; see $MATRIX/$row/$name.log"; }
    echo "$want" >"$MATRIX/$row/$name.done"
    say "== $row: $name: $((SECONDS - begin)) s"
}

tree() {
    (cd "$TOP" && find bootcache glance_bootcache nova_bootcache tests/unit tools/matrix doc etc -type f \
        -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum)
}

install_debian_packages
for row in "${ROWS[@]}"; do
    mkdir -p "$MATRIX/$row/scratch"
    VENV=$MATRIX/$row/venv
    environment "$row"
    results=$MATRIX/$row
    # Nova's tests put eventlet in place as soon as they are imported; our own choose for themselves.
    part "$row" unit env -C "$TOP" OS_NOVA_DISABLE_EVENTLET_PATCHING=1 "PATH=$VENV/bin:$PATH" \
        "$VENV/bin/python" -W ignore -m tools.matrix.unit_tests --report "$results/unit.json"
    nova=(env -C "$results/scratch" "PYTHONPATH=$TOP" "$VENV/bin/python" -W ignore -m tools.matrix.nova_tests
        --stock "$results/stock.json")
    [ -s "$results/stock.json" ] || { say "== $row: Nova's tests with its own driver"; \
        "${nova[@]}" --only-stock >"$results/stock.log" 2>&1 || { tail "$results/stock.log" >&2; die "see $results/stock.log"; }; }
    part "$row" driver "${nova[@]}" --report "$results/driver.json"
done
"$VENV/bin/python" "$TOP/tools/matrix/table.py" "$MATRIX" "${ROWS[@]}"
