#!/usr/bin/env bash
# Sorts a file with GNU sort, which loads all of it into memory: first as usual, then with overspill in a fraction of
# the RAM, and compares.
#
# usage: demo/demo.sh [MEBIBYTES]     size of the file (default 512)
#
# Needs gcc, python3 and coreutils, four times the size of the file on the disk, and no root.
set -euo pipefail
cd "$(dirname "$0")/.."

mebibytes=${1:-512}
budget="$((mebibytes / 4))M"
target=${CARGO_TARGET_DIR:-target}
overspill=${OVERSPILL_BIN:-$target/release/overspill}
if [ ! -x "$overspill" ]; then
    echo "demo: there is no $overspill: run make build" >&2
    exit 1
fi
mkdir -p "$target"
work=$(mktemp -d "$(realpath "$target")/demo-XXXXXX")
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

# Runs a command and tells the most memory that a process of it had resident, as the kernel counted it.
measured() {
    python3 -c '
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(f"   most resident memory: {peak_kib >> 10} MiB", file=sys.stderr)
sys.exit(status if status >= 0 else 128 - status)' "$@"
}

echo "A file of $mebibytes MiB of records in random order:"
gcc -O2 -o "$work/lines" demo/lines.c
"$work/lines" "$((mebibytes << 20))" >"$work/lines.txt"
head -n 2 "$work/lines.txt" | cut -c 1-100

sort=(sort -S "$((mebibytes * 2))M" --parallel=2 -T "$work" "$work/lines.txt")
echo
echo "1. As usual: ${sort[*]::4} lines.txt"
SECONDS=0
expected=$(measured "${sort[@]}" | sha256sum)
echo "   SHA-256 ${expected%% *}, $SECONDS s"

echo
echo "2. In $budget of RAM: overspill run --memory $budget --swap DIR --stats -- ${sort[*]::4} lines.txt"
SECONDS=0
sorted=$(measured "$overspill" run --memory "$budget" --swap "$work" --stats -- "${sort[@]}" | sha256sum)
echo "   SHA-256 ${sorted%% *}, $SECONDS s"

echo
if [ "$sorted" != "$expected" ]; then
    echo "demo: the outputs differ" >&2
    exit 1
fi
echo "The same output, in $budget of RAM."
