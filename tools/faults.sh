#!/bin/bash
# Faults at every step of images' and servers' lives, set-up included; they write into faults-report/:
#   tools/faults.sh [--quick|--full|--cloud] [NAME...]   NAME: a step, a part of steps' names, a fault; --list tells
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

"$TOP/tools/setup.sh"
cd "$TOP"
exec "$VENV/bin/python" -W ignore -m bench.faults "$@"
