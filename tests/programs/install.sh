#!/bin/sh
# Installs the programs that the test of programs runs, where this is Debian or Ubuntu and root.
# Otherwise it says what is missing: the cases that need it are skipped, loudly. With --quick only
# what the quick cases need is installed.
set -u

missing=
# need PACKAGE PROGRAM: the package is missing where the program is.
need() {
    PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v "$2" >/dev/null || missing="$missing $1"
}

need perl perl
need python3 python3
need ruby ruby
need php-cli php
need lua5.4 lua5.4
need default-jdk-headless javac
need gcc gcc
need g++ g++
need make make
need binutils as
need redis-server redis-server
need redis-tools redis-benchmark
need nginx-light nginx
need apache2 apache2
need imagemagick /usr/bin/convert
need zstd zstd
need qemu-system-x86 qemu-system-x86_64
need gdb gdb
need strace strace
need valgrind valgrind
need bubblewrap bwrap
need tmux tmux
need openssh-client ssh-keygen
need gnupg gpg
need git git
need sqlite3 sqlite3
# What packages are made and tried with, and what scrapes a job in a test.
need dpkg-dev dpkg-shlibdeps
need rpm rpmbuild
need rpm2cpio rpm2cpio
need cpio cpio
need pkg-config pkg-config
need prometheus prometheus
# What recipes are tried with.
need runc runc
need shellcheck shellcheck
/usr/bin/python3 -c 'import yaml' 2>/dev/null || missing="$missing python3-yaml"

if [ "${1-}" != --quick ]; then
    need r-base-core Rscript
    need nodejs node
    need clang clang
    need cmake cmake
    need ninja-build ninja
    need autoconf autoconf
    need mariadb-server mariadbd
    need mariadb-client mariadb
    need postgresql pg_lsclusters
    need ffmpeg ffmpeg
    need xz-utils xz
    need p7zip-full 7z
    need chromium chromium
    need firefox-esr firefox-esr
    /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
    [ -e /usr/lib/chromium/chrome-sandbox ] || missing="$missing chromium-sandbox"
    /usr/bin/python3 -c 'import numpy' 2>/dev/null || missing="$missing python3-numpy"
    /usr/bin/python3 -c 'import pandas' 2>/dev/null || missing="$missing python3-pandas"
    command -v go >/dev/null || [ -x /usr/local/go/bin/go ] || missing="$missing golang-go"
fi

# Word by word where that fails, so that a package that there is not (chromium of Ubuntu) does not
# keep the others away.
install_packages() {
    if [ -z "$missing" ]; then
        return
    elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "tests/programs/install.sh: not installed:$missing (needs root and apt-get)" >&2
        return
    fi
    # RUNLEVEL=1: a package's service is not started.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    apt-get -q update
    # shellcheck disable=SC2086 # a list of words
    apt-get -q install -y --no-install-recommends $missing || for package in $missing; do
        apt-get -q install -y --no-install-recommends "$package" ||
            echo "tests/programs/install.sh: could not install: $package" >&2
    done
}

# What the cases of data need, and the schemas that recipes are held against, from PyPI, in an
# environment of its own: some 2 GB.
make_environment() {
    python="${CARGO_TARGET_DIR:-$(dirname "$0")/../../target}/programs/venv/bin/python"
    [ -x "$python" ] || python3 -m venv "${python%/bin/python}"
    "$python" -m pip install -q \
        polars duckdb pyarrow scikit-learn numba xgboost jax 'dask[array]' \
        kubernetes-validate check-jsonschema ||
        echo "tests/programs/install.sh: could not install all of what is had from PyPI" >&2
}

install_packages
if [ "${1-}" != --quick ]; then
    make_environment
fi
exit 0
