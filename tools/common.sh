# shellcheck shell=bash
# Where the developer's tools keep what they make, and how they start. Sourced by the scripts in tools/.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Everything large or downloaded lives here, outside the repository: virtual environment, images, the cloud.
BOOTCACHE_HOME=${BOOTCACHE_HOME:-${HOME:-/root}/.cache/bootcache}
VENV=$BOOTCACHE_HOME/venv
export TOP BOOTCACHE_HOME VENV
# Where this is set every start of a service compiles its modules again.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
