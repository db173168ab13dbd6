#!/bin/sh
# Builds a tarball, a .deb and an .rpm of what was built, and runs a program from each as it would
# be installed. `make packages` calls it. Where a tool is missing that package is skipped, loudly.
#
#   package.sh RELEASE TREE OUT     the build, what is installed, where packages go
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
release=$1 tree=$2 out=$3
cargo=${CARGO:-cargo}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
# So that the same build makes the same packages.
committed=$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$committed}"
stage=$release/stage
scratch=$out.try
rm -rf "$scratch"
mkdir -p "$scratch"
trap 'rm -rf "$scratch"' EXIT

skipped() {
    echo "SKIPPED: $1: there is no $2 ($3)" >&2
}

# Runs a program from what was installed below a directory.
try() {
    command=$1/bin/overspill
    if ! "$command" probe >"$scratch/probe"; then
        echo "SKIPPED: running a program from $2: overspill probe says that nothing runs here" >&2
        return
    fi
    said=$("$command" run --memory 64M -- sh -c 'echo works')
    if [ "$said" != works ]; then
        echo "package.sh: $2: a program under overspill said '$said'" >&2
        exit 1
    fi
    for file in include/overspill.h lib/liboverspill.so.0 lib/liboverspill.so lib/liboverspill.a \
        lib/pkgconfig/overspill.pc; do
        if [ ! -e "$1/$file" ]; then
            echo "package.sh: $2: there is no $file" >&2
            exit 1
        fi
    done
    for file in man/man1/overspill.1* man/man3/overspill.3* man/man7/overspill-settings.7* \
        bash-completion/completions/overspill doc/overspill/seccomp.json \
        doc/overspill/dashboard.json; do
        if [ -z "$(find "$1/share" -path "$1/share/$file" -size +0)" ]; then
            echo "package.sh: $2: there is no $file" >&2
            exit 1
        fi
    done
    echo "$2: a program ran from it"
}

# The tree without what debuggers read, which is most of it, and with the documents.
put_together() {
    rm -rf "$stage"
    mkdir -p "$stage"
    cp -R "$tree" "$stage/overspill-$version-x86_64-linux"
    (
        cd "$stage/overspill-$version-x86_64-linux"
        strip --strip-debug bin/overspill lib/overspill/liboverspill_preload.so \
            lib/liboverspill.so.0 lib/liboverspill.a
        mkdir -p share/doc/overspill
        cp "$root/README.md" "$root/LICENSE-MIT" "$root/LICENSE-APACHE" share/doc/overspill
        cp "$root/packaging/seccomp.json" share/doc/overspill
        for file in prometheus.yml alerts.yml dashboard.json; do
            cp "$root/packaging/prometheus/$file" share/doc/overspill
        done
        DESTDIR='' PREFIX="$stage/usr" ./install.sh
    )
    gzip -9n "$stage"/usr/share/man/man?/*
}

tarball() {
    name=overspill-$version-x86_64-linux
    tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
    tar -xzf "$out/$name.tar.gz" -C "$scratch"
    DESTDIR="$scratch/root" "$scratch/$name/install.sh"
    try "$scratch/root/usr/local" "$name.tar.gz"
    DESTDIR="$scratch/root" "$scratch/$name/install.sh" uninstall
    if [ -n "$(find "$scratch/root" -type f)" ]; then
        echo "package.sh: $name.tar.gz: install.sh uninstall leaves files" >&2
        exit 1
    fi
}

deb() {
    if ! "$cargo" deb --version >/dev/null 2>&1; then
        skipped "the .deb" cargo-deb "cargo install --locked cargo-deb"
        return
    fi
    (cd "$root" && "$cargo" deb -q -p overspill-packaging --no-build --no-strip -o "$out")
    file=$(ls "$out"/overspill_"$version"*.deb)
    dpkg-deb -x "$file" "$scratch/deb"
    try "$scratch/deb/usr" "$(basename "$file")"
}

rpm() {
    if ! "$cargo" generate-rpm --version >/dev/null 2>&1; then
        skipped "the .rpm" cargo-generate-rpm "cargo install --locked cargo-generate-rpm"
        return
    fi
    (cd "$root" && "$cargo" generate-rpm -p packaging -o "$out")
    file=$(ls "$out"/overspill-"$version"*.rpm)
    if ! command -v rpm2cpio >/dev/null || ! command -v cpio >/dev/null; then
        skipped "running a program from the .rpm" "rpm2cpio and cpio" "they are in packages"
        return
    fi
    mkdir "$scratch/rpm"
    rpm2cpio "$file" | (cd "$scratch/rpm" && cpio -id --quiet)
    try "$scratch/rpm/usr" "$(basename "$file")"
}

put_together
tarball
deb
rpm
ls -l "$out"
