#!/bin/bash
# Faults at every step of images' and servers' lives, set-up included; they write into faults-report/:
#   tools/faults.sh [--quick|--full|--cloud] [NAME...]   NAME: a step, a part of steps' names, a fault; --list tells
#   tools/faults.sh --long [NAME...]             those that last for 35 and for 200 s; takes half an hour
#   tools/faults.sh --ways [--quick] [NAME...]   ways to a base that fail below real guests; NAME: a way or a case
#   tools/faults.sh --nodes [--quick] [--galera] [NAME...]
#                                                storage nodes that fail, while guests read from three; NAME: a case or a step
#   tools/faults.sh --soak [N]                   N (500) registrations, boots and deletions: does anything grow?
#   tools/faults.sh --upgrade [COMMIT...]        parts are replaced by those of an earlier version, and back
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

"$TOP/tools/setup.sh"
cd "$TOP"
exec "$VENV/bin/python" -W ignore -m bench.faults "$@"
