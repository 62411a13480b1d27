#!/bin/bash
# Benchmarks, set-up included; each writes bench-report/NAME.json: tools/bench.sh clusters|refinement|weigher|cluster [options]
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

name=${1:-}
case $name in
clusters | refinement | weigher | cluster) ;;
*) die "usage: tools/bench.sh clusters|refinement [--boots N] | weigher [--hosts N] | cluster [--quick]" ;;
esac
shift

"$TOP/tools/setup.sh"
cd "$TOP"
case $name in
clusters | refinement | cluster) set -- "$("$TOP/tools/images/make.sh" debian)" "$@" ;;
esac
exec "$VENV/bin/python" -W ignore -m "tests.bench.$name" "$@"
