# shellcheck shell=bash
# The host's own apt sources, for mmdebstrap. Sourced by what makes a Debian.

# The host's own mirror, asked for another release where need be; sources of others than Debian may not have it.
apt_sources() { # RELEASE PREFIX [ETC]
    local release=$1 prefix=$2 etc=${3:-/etc} codename file found=
    # shellcheck source=/dev/null
    codename=$(. "$etc/os-release" && echo "${VERSION_CODENAME:-}")
    [ -n "$codename" ] || die "$etc/os-release names no release of Debian"
    while read -r file; do
        found=1
        case $file in
            *.list) grep -E "$(apt_suites "$codename")" "$file" | sed "s/\\b$codename\\b/$release/g" >>"$prefix.list" ;;
            *) { sed "/^#/d; s/\\b$codename\\b/$release/g" "$file"; echo; } >>"$prefix.sources" ;;
        esac
    done < <(find "$etc/apt/sources.list" "$etc/apt/sources.list.d" -type f \( -name '*.list' -o -name '*.sources' \) \
        -exec grep -lE "$(apt_suites "$codename")" {} + 2>/dev/null | sort)
    [ -n "$found" ] || die "no apt source of the host has $codename"
}

# The release itself, its updates, and its security archive, but no cloud-sdk-bookworm or bookworm-pgdg.
apt_suites() { # CODENAME
    echo "^[^#]*[[:space:]]$1(-updates|-security|-backports|/updates)?([[:space:]]|\$)"
}
