#!/bin/bash
# Benchmarks, set-up included; all write into bench-report/:
#   tools/bench.sh [--quick|--full]      recorded boots, replayed through the real block path, side by side
#   tools/bench.sh PART... [options]     a part of it: check, many-hosts, many-images, quota, many-servers,
#                                        under-stress, savings, many-readers, propagation, alternatives, tls, on-ceph, exchanged;
#                                        --help tells what each is
#   tools/bench.sh exchange [--quick]     a cache image to many hosts at once, given by each other, and copied
#   tools/bench.sh snapshots [--quick]    servers' snapshots on Ceph and on files, boots from one, and many resumed, ours and stock's: bytes, time
#   tools/bench.sh service [--quick]      the storage service's RPC: CPU of a call, rate, hosts' reports, storms, many images at once
#   tools/bench.sh clusters [--boots N], weigher [--hosts N], cluster [--quick] [--exchanged | --arrivals FILE]
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

name=replay
case ${1:-} in
clusters | weigher | cluster | exchange | service | snapshots) name=$1; shift ;;
'' | --* | check | row[1-9] | row1[0-2]) ;;
many-hosts | many-images | quota | many-servers | under-stress) ;;
savings | many-readers | propagation | alternatives | tls | on-ceph | exchanged) ;;
*) die "usage: tools/bench.sh [check|many-hosts|many-images|quota|many-servers|under-stress|savings|many-readers
       |propagation|alternatives|tls|on-ceph|exchanged...] [--quick|--full] | clusters [--boots N] | weigher [--hosts N]
       | cluster [--quick] [--exchanged] | exchange [--quick] | service [--quick] | snapshots [--quick]" ;;
esac

"$TOP/tools/setup.sh"
cd "$TOP"
case $name in
snapshots)
    image=debian
    case " $* " in *' --quick '*) image=small ;; esac
    set -- "$("$TOP/tools/images/make.sh" $image)" "$@"
    ;;
clusters | cluster) set -- "$("$TOP/tools/images/make.sh" debian)" "$@" ;;
esac
exec "$VENV/bin/python" -W ignore -m "bench.$name" "$@"
