# shellcheck shell=bash
# A row of tools/matrix.sh on another release of Debian: a root of its packages, in which everything runs as on a
# machine of that release. Sourced by tools/matrix.sh.

# shellcheck source=tools/images/sources.sh
. "$TOP/tools/images/sources.sh"

# Beside those of setup.sh: what an installed system has anyway.
DEBIAN_ROOT_PACKAGES=("${DEBIAN_PACKAGES[@]}" python3 systemd-sysv dbus udev kmod netbase less file)

# Run a command in a row's root, in namespaces of its own: with this process they end, whatever becomes of it,
# and with them all that was mounted or started.
in_root() { # DIRECTORY NETWORK COMMAND...    NETWORK: host, or none but the loopback interface
    local directory=$1 network=()
    [ "$2" = host ] || network=(--net)
    shift 2
    contained "${network[@]}" "$TOP/tools/matrix/enter" "$DEBIAN_ROOT" "$directory" \
        env -u PIP_FIND_LINKS HOME=/root BOOTCACHE_HOME=/root/.cache/bootcache LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# In the background, as bash puts off its traps while a command in the foreground runs.
contained() { # [--net] COMMAND...
    local job
    setpriv --pdeathsig KILL unshare --mount --pid --ipc --uts --propagation private --fork --kill-child=KILL \
        "$@" </dev/null &
    job=$!
    wait "$job"
}

# Make the root of a release unless it is there. Sets DEBIAN_ROOT.
debian_root() { # RELEASE DIRECTORY
    local release=$1 directory=$2 want work
    DEBIAN_ROOT=$directory/root
    want=$({ declare -p DEBIAN_ROOT_PACKAGES; declare -f debian_root; } | sha256sum)
    [ "$(cat "$directory/root.stamp" 2>/dev/null)" != "$want" ] || return 0
    [ "$(id -u)" = 0 ] || die "run as root: a root of Debian $release is made"
    say "== making a root of Debian $release"
    rm -rf "$directory"/root "$directory"/root.* "$directory"/*.json "$directory"/*.done
    work=$directory/root.new
    mkdir -p "$work"
    apt_sources "$release" "$work/apt"
    # The lists stay: the guest images' packages are asked of apt.
    contained mmdebstrap --quiet --mode=root --variant=important --dpkgopt=force-unsafe-io \
        --aptopt='Acquire::Languages "none"' --aptopt='Apt::Install-Recommends "false"' \
        --skip=cleanup/apt/lists --include="$(IFS=,; echo "${DEBIAN_ROOT_PACKAGES[*]}")" \
        "$release" "$work/root" "$work"/apt.* >"$directory/root.log" 2>&1 \
        || { tail "$directory/root.log" >&2; die "mmdebstrap failed; see $directory/root.log"; }
    mv "$work/root" "$DEBIAN_ROOT"
    rm -rf "$work"
    echo "$want" >"$directory/root.stamp"
}

# A copy of the tree in the root: what runs there writes into it, and the tree may go on changing.
debian_tree() {
    local copy=$DEBIAN_ROOT/root/tree
    rm -rf "$copy"
    # What a run that was killed left.
    find "$DEBIAN_ROOT/tmp" -mindepth 1 -delete
    mkdir -p "$copy"
    tree_files | tar -C "$TOP" --null -T - -cf - | tar -C "$copy" -xf -
    # The tests that make an sdist ask git which files are there.
    git init -q "$copy"
}

# Run a part in the root; what came of it is there, in /root.
debian_part() { # NAME COMMAND...
    local name=$1; shift
    rm -f "$DEBIAN_ROOT/root/$name.json"
    in_root /root/tree loopback "$@" || true
    cp "$DEBIAN_ROOT/root/$name.json" "$MATRIX/$row/"
}

debian_row() { # ROW RELEASE
    local row=$1 results=$MATRIX/$1 state python=/root/.cache/bootcache/venv/bin/python name tests left=
    debian_root "$2" "$results"
    state=$(state_of "$results/root.stamp")
    for name in unit functional uefi demo; do
        [ "$(cat "$results/$name.done" 2>/dev/null)" = "$state" ] || left=1
    done
    [ -n "$left" ] || return 0
    debian_tree
    say "== $row: setting up"
    in_root /root/tree host sh -ec 'apt-get -qq update; tools/setup.sh
        tools/images/make.sh small; tools/images/make.sh debian; tools/images/uefi.sh' \
        >"$results/setup.log" 2>&1 || { tail "$results/setup.log" >&2; die "setting up failed; see $results/setup.log"; }
    for name in unit functional uefi; do
        tests=tests/$name
        [ "$name" != uefi ] || tests=tests/e2e/test_uefi.py
        part "$row" "$name" "$state" debian_part "$name" \
            env PATH="${python%/*}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
            "$python" -W ignore -m tools.matrix.our_tests --report "/root/$name.json" "$tests"
    done
    part "$row" demo "$state" debian_part demo \
        "$python" -W ignore -m tools.matrix.program --report /root/demo.json \
        -- tools/demo.sh --report /root/demo-report
}
