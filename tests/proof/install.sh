#!/bin/sh
# Installs the programs that the proof and other tests run, where this is Debian or Ubuntu and root.
# Otherwise it says what is missing: the cases that need it are skipped, loudly.
set -u

missing=
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v stress-ng >/dev/null || missing="$missing stress-ng"
for shell in zsh fish; do # whose completions are looked at
    command -v $shell >/dev/null || missing="$missing $shell"
done
/usr/bin/python3 -c 'import numpy' 2>/dev/null || python3 -c 'import numpy' 2>/dev/null ||
    missing="$missing python3-numpy"

if [ -z "$missing" ]; then
    exit 0
elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests/proof/install.sh: not installed:$missing (needs root and apt-get)" >&2
    exit 0
fi

# RUNLEVEL=1: a package's service is not started.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
# shellcheck disable=SC2086 # a list of words
{ apt-get -q update && apt-get -q install -y --no-install-recommends $missing; } ||
    echo "tests/proof/install.sh: could not install:$missing" >&2
