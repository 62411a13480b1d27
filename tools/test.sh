#!/bin/bash
# All tests, set-up included: tools/test.sh [lint|unit|functional|e2e] [pytest arguments]
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

case ${1:-all} in
all | lint | unit | functional | e2e) part=${1:-all} ;;
-h | --help)
    say "usage: tools/test.sh [lint|unit|functional|e2e] [pytest arguments]"
    exit 0
    ;;
*) die "'$1' is not one of: lint, unit, functional, e2e" ;;
esac
[ $# -eq 0 ] || shift

"$TOP/tools/setup.sh"
cd "$TOP"
# Dependencies warn of eventlet's end at every import.
tests=("$VENV/bin/python" -W ignore -m pytest)

lint() {
    say "== lint"
    "$VENV/bin/ruff" check .
    "$VENV/bin/mypy"
    git ls-files -z '*.sh' devstack tools/cloud/remote | xargs -0 grep -lZE '^#!/bin/(ba)?sh|shellcheck shell' \
        | xargs -0 shellcheck -x
}

run() {
    local what=$1 begin=$SECONDS
    shift
    say "== $what"
    if [ "$what" = e2e ]; then
        images_made
    fi
    "${tests[@]}" "tests/$what" "$@"
    say "== $what: $((SECONDS - begin)) s"
}

# Several clouds beside each other need namespaces, and one that stays up is the only one.
beside_each_other() {
    [ -z "${BOOTCACHE_E2E_KEEP:-}" ] && [ "${BOOTCACHE_E2E_CLOUDS:-}" != 1 ] && [ "$(id -u)" = 0 ] \
        && unshare --net --pid --fork --mount-proc true 2>/dev/null
}

# Their making must not count against a test's time; it goes beside what needs none of them.
begin_images() {
    "$TOP/tools/images/make.sh" small >/dev/null &
    small=$!
    "$TOP/tools/images/make.sh" debian >/dev/null &
    debian=$!
    uefi=
    # Where setup.sh has installed what starts it.
    if [ -d /usr/share/OVMF ] && command -v mcopy >/dev/null; then
        "$TOP/tools/images/uefi.sh" >/dev/null &
        uefi=$!
    fi
    trap 'kill "$small" "$debian" $uefi 2>/dev/null || true; wait' EXIT
}

images_made() {
    wait "$small"
    wait "$debian"
    # shellcheck disable=SC2086  # none, or one
    wait $uefi
}

run_beside_each_other() {
    images_made
    exec "$VENV/bin/python" -W ignore -m tools.testrun "$@"
}

case $part in all | e2e) begin_images ;; esac
if [ "$part" = all ]; then
    lint
    if beside_each_other; then run_beside_each_other unit functional e2e -- "$@"; fi
    for what in unit functional e2e; do run "$what" "$@"; done
elif [ "$part" = lint ]; then
    lint
elif [ "$part" = e2e ] && beside_each_other; then
    run_beside_each_other e2e -- "$@"
else
    run "$part" "$@"
fi
