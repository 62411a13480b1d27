#!/bin/bash
# Benchmarks, set-up included; all write into bench-report/:
#   tools/bench.sh [--quick|--full]             recorded boots, replayed through the real block path, side by side
#   tools/bench.sh check|row1|row2... [options]    a part of it
#   tools/bench.sh clusters|refinement [--boots N], weigher [--hosts N], cluster [--quick], overlays
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

name=replay
case ${1:-} in
clusters | refinement | weigher | cluster | overlays) name=$1; shift ;;
'' | --* | row[0-9] | check) ;;
*) die "usage: tools/bench.sh [check|row1|row2...] [--quick|--full] | clusters|refinement [--boots N]
       | weigher [--hosts N] | cluster [--quick] | overlays" ;;
esac

"$TOP/tools/setup.sh"
cd "$TOP"
case $name in
clusters | refinement | cluster) set -- "$("$TOP/tools/images/make.sh" debian)" "$@" ;;
esac
exec "$VENV/bin/python" -W ignore -m "bench.$name" "$@"
