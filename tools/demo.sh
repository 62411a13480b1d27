#!/bin/bash
# The main job, set-up included: a real one-host OpenStack, a real Debian image, and its boots under
# stock Nova and from a cache image. See README.md; --help shows the options.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

case " $* " in
*" --down "*)
    [ -x "$VENV/bin/python" ] || exit 0
    cd "$TOP"
    "$VENV/bin/python" -m tools.demo.link
    exec "$VENV/bin/python" -m tools.cloud down --wipe
    ;;
*" --help "* | *" -h "*)
    cat <<'HELP'
usage: tools/demo.sh [--repeat N] [--link MBIT|none] [--keep] [--report DIRECTORY] | --down

  --repeat N          repeat the second and later boots N times, to see their spread (default: 1)
  --link MBIT|none    hold what Glance and the storage node send to a rate (default: 1000 Mbit/s)
  --keep              leave the cloud up, and say how to use and stop it
  --report DIRECTORY  where the report goes (default: demo-report)
  --down              stop a cloud that --keep left, and remove its files
HELP
    exit 0
    ;;
esac

begin=$SECONDS
"$TOP/tools/setup.sh"
image=$("$TOP/tools/images/make.sh" debian)
status=0
PYTHONPATH=$TOP "$VENV/bin/python" -m tools.demo --image "$image" "$@" || status=$?
say "demo: $((SECONDS - begin)) s, set-up included"
exit "$status"
