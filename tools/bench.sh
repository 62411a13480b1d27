#!/bin/bash
# Benchmarks, set-up included; each writes bench-report/NAME.json: tools/bench.sh clusters|refinement [options]
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

name=${1:-}
case $name in
clusters | refinement) ;;
*) die "usage: tools/bench.sh clusters|refinement [--boots N]" ;;
esac
shift

"$TOP/tools/setup.sh"
image=$("$TOP/tools/images/make.sh" debian)
cd "$TOP"
exec "$VENV/bin/python" -W ignore -m "tests.bench.$name" "$image" "$@"
