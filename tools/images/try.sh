#!/bin/bash
# Boot an image with QEMU's emulator, its serial console on stdout, and measure the seconds until "login:".
# The image stays as it is. usage: try.sh IMAGE [seconds]
#   TRY_MEMORY=512   MiB of memory
#   TRY_DISK=5G      size of the disk, where it is to be larger than the image
#   TRY_ARGS=        more arguments for QEMU, as for a config drive
#   TRY_INPUT=FILE   lines to type after "login:"; then the guest runs until it powers off or the seconds are over
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../common.sh"

[ $# -ge 1 ] || die "usage: try.sh IMAGE [seconds]"
image=$(realpath "$1")
limit=${2:-180}
work=$(mktemp -d /var/tmp/try.XXXXXX)
qemu=
cleanup() {
    trap '' INT TERM HUP
    if [ -n "$qemu" ]; then
        kill "$qemu" 2>/dev/null || true
        wait "$qemu" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkfifo "$work/in" "$work/out"
# Open for both, or each open would wait for the other side.
exec 3<>"$work/out" 4<>"$work/in"
# shellcheck disable=SC2086  # the size may be left out
qemu-img create -q -f qcow2 -b "$image" -F qcow2 "$work/disk.qcow2" ${TRY_DISK:-}
started=${EPOCHREALTIME/./}
# shellcheck disable=SC2086  # a list of arguments
qemu-system-x86_64 -accel tcg -smp 1 -m "${TRY_MEMORY:-512}" -nodefaults -display none \
    -drive "file=$work/disk.qcow2,format=qcow2,if=virtio" -serial stdio ${TRY_ARGS:-} \
    <"$work/in" >"$work/out" 3>&- 4>&- &
qemu=$!

took() { printf '%d' $((${EPOCHREALTIME/./} - started)); }
seen='' login=
while [ "$(took)" -lt $((limit * 1000000)) ]; do
    # The prompt has no newline; what comes without a colon is shown when nothing follows.
    if IFS= read -r -d : -t 1 text <&3; then
        text+=:
    elif [ -z "$text" ] && ! kill -0 "$qemu" 2>/dev/null; then
        break
    fi
    printf '%s' "$text"
    seen=${seen: -16}$text
    if [ -z "$login" ] && [[ $seen == *login:* ]]; then
        login=$(took)
        [ -n "${TRY_INPUT:-}" ] || break
        cat "$TRY_INPUT" >&4
    fi
done
echo
[ -n "$login" ] || die "no login: within $(($(took) / 1000000)) s"
say "login: after $((login / 1000000)).$(printf %02d $((login / 10000 % 100))) s"
