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
    "$VENV/bin/python" -m tools.cloud down --wipe
    exec "$VENV/bin/python" -m tools.ceph down --wipe "$BOOTCACHE_HOME/demo-ceph"
    ;;
*" --help "* | *" -h "*)
    cat <<'HELP'
usage: tools/demo.sh [--store file|rbd] [--repeat N] [--link MBIT|none] [--hosts N] [--nodes N] [--keep]
                     [--report DIRECTORY]
       tools/demo.sh --down

  --store file|rbd    where Glance keeps its images: in files, or in a small real Ceph, which the host reads bases
                      in by itself (default: file)
  --repeat N          repeat the second and later boots N times, to see their spread (default: 1)
  --link MBIT|none    hold what Glance and the storage node send to a rate, and what Ceph sends (default: 1000
                      Mbit/s)
  --hosts N           replay a boot on so many cold hosts at once afterwards, with images in files; 0 for not at
                      all (default: 8)
  --nodes N           with 2 or 3: in the end so many storage nodes serve, with a MariaDB, and the one that eight servers
                      read from is killed (default: 1)
  --keep              leave the cloud up, and say how to use and stop it
  --report DIRECTORY  where the report goes (default: demo-report)
  --down              stop a cloud that --keep left, and remove its files
HELP
    exit 0
    ;;
esac

hosts=8 report=demo-report arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    --hosts) hosts=${2:-}; shift ;;
    --hosts=*) hosts=${1#*=} ;;
    --report) report=${2:-}; arguments+=("$1" "$report"); shift ;;
    --report=*) report=${1#*=}; arguments+=("$1") ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
case $hosts in
'' | *[!0-9]*) die "--hosts is a number of hosts, or 0 to leave them out; not '$hosts'" ;;
esac

begin=$SECONDS
"$TOP/tools/setup.sh"
image=$("$TOP/tools/images/make.sh" debian)
status=0
PYTHONPATH=$TOP "$VENV/bin/python" -m tools.demo --image "$image" "${arguments[@]}" || status=$?
if [ "$status" = 0 ] && [ "$hosts" != 0 ]; then
    say "== $hosts cold hosts at once, replayed"
    PYTHONPATH=$TOP "$VENV/bin/python" -W ignore -m bench.replay.coldhosts --hosts "$hosts" --report "$report" \
        || status=$?
fi
say "demo: $((SECONDS - begin)) s, set-up included"
exit "$status"
