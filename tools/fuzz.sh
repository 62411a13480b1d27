#!/bin/bash
# Mutated qcow2 files through all that opens a tenant's file, set-up included; writes into fuzz-report/:
#   tools/fuzz.sh [--runs N] [--seed N] [--workers N] [--seconds N]    10,000 files without arguments
#   tools/fuzz.sh --only NUMBER --keep PATH                            one of them again
#   tools/fuzz.sh parsers [SECONDS]                                    coverage-guided, by atheris, an hour
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

"$TOP/tools/setup.sh"
cd "$TOP"
module=fuzz
if [ "${1:-}" = parsers ]; then shift; module=fuzzparsers; fi
exec "$VENV/bin/python" -W ignore -m "bench.$module" "$@"
