#!/usr/bin/env bash
# Runs a job that holds all of its data in memory: first as usual, then with overspill in a quarter
# of the RAM, and compares what it prints.
#
# usage: demo/demo.sh [MEBIBYTES]     size of the data (default 512)
#
# Needs python3, as much room on the disk as there are data, and no root where userfaultfd is
# allowed.
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

# Runs a command and tells the most memory that a process of it had resident, as the kernel counted
# it.
measured() {
    python3 -c '
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(f"   most resident memory: {peak_kib >> 10} MiB", file=sys.stderr)
sys.exit(status if status >= 0 else 128 - status)' "$@"
}

job=(python3 demo/job.py "$mebibytes")
echo "1. As usual: ${job[*]}"
SECONDS=0
expected=$(measured "${job[@]}")
echo "$expected" | sed 's/^/   /'
echo "   $SECONDS s"

echo
echo "2. In $budget of RAM: overspill run --memory $budget --swap DIR --stats -- ${job[*]}"
SECONDS=0
found=$(measured "$overspill" run --memory "$budget" --swap "$work" --stats -- "${job[@]}")
echo "$found" | sed 's/^/   /'
echo "   $SECONDS s"

echo
if [ "$found" != "$expected" ]; then
    echo "demo: the outputs differ" >&2
    exit 1
fi
echo "The same output, in $budget of RAM."
