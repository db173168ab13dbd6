#!/bin/sh
# Fuzzes without cargo-fuzz: builds all targets as it does, by a nightly compiler, and runs one.
#
#     fuzz/fuzz.sh TARGET [OPTIONS OF LIBFUZZER...]
#
# It begins with the inputs in fuzz/corpus/TARGET and fuzz/seeds/TARGET. Those that reach something
# new are kept in the former, and findings in fuzz/artifacts/TARGET, as by cargo-fuzz. Without
# options it runs for a minute. A finding is run again where the options name its file, as
# artifacts/TARGET/crash-..., and made smaller with -minimize_crash=1.
set -eu
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")"
target=$1
shift
[ $# -ge 1 ] || set -- -max_total_time=60
inputs=corpus/$target
[ ! -d "seeds/$target" ] || inputs="$inputs seeds/$target"
for option in "$@"; do
    [ ! -f "$option" ] || inputs=
done

coverage="-Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage="$coverage -Cllvm-args=-sanitizer-coverage-$option"
done
# Away from what other compilers build, with less of the time that optimising takes.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=4
triple=x86_64-unknown-linux-gnu
RUSTFLAGS="--cfg fuzzing $coverage -Zsanitizer=address -Cdebug-assertions" \
    cargo +nightly build --quiet --release --bins --features libfuzzer --target $triple

mkdir -p "corpus/$target" "artifacts/$target"
exec "$CARGO_TARGET_DIR/$triple/release/$target" $inputs -artifact_prefix="artifacts/$target/" "$@"
