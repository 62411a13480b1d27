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
        # Their making must not count against a test's time.
        "$TOP/tools/images/make.sh" small >/dev/null
        "$TOP/tools/images/make.sh" debian >/dev/null
    fi
    "${tests[@]}" "tests/$what" "$@"
    say "== $what: $((SECONDS - begin)) s"
}

if [ "$part" = all ]; then
    lint
    for what in unit functional e2e; do run "$what" "$@"; done
elif [ "$part" = lint ]; then
    lint
else
    run "$part" "$@"
fi
