#!/bin/sh
# Builds a tarball, a .deb and an .rpm of what was built, and tries each as it would be installed.
# `make packages` calls it. Where a tool is missing that package is skipped, loudly.
#
#   package.sh RELEASE TREE OUT     the build, what is installed, where packages go
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
release=$1 tree=$2 out=$3
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
name=overspill-$version-x86_64-linux
# So that the same build makes the same packages.
committed=$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$committed}"
stage=$release/stage
scratch=$out.try
rm -rf "$scratch" "$stage"
mkdir -p "$scratch" "$stage"
trap 'rm -rf "$scratch"' EXIT

skipped() {
    echo "SKIPPED: $1: there is no $2 ($3)" >&2
}

# Runs a program from what was installed below a directory, with libraries in one of it.
try() {
    command=$1/bin/overspill
    if ! "$command" probe >"$scratch/probe"; then
        echo "SKIPPED: running a program from $3: overspill probe says that nothing runs here" >&2
        return
    fi
    said=$("$command" run --memory 64M -- sh -c 'echo works')
    if [ "$said" != works ]; then
        echo "package.sh: $3: a program under overspill said '$said'" >&2
        exit 1
    fi
    for file in include/overspill.h "$2/liboverspill.so.0" "$2/liboverspill.so" \
        "$2/liboverspill.a" "$2/pkgconfig/overspill.pc"; do
        if [ ! -e "$1/$file" ]; then
            echo "package.sh: $3: there is no $file" >&2
            exit 1
        fi
    done
    for file in man/man1/overspill.1* man/man3/overspill.3* man/man7/overspill-settings.7* \
        bash-completion/completions/overspill doc/overspill/seccomp.json \
        doc/overspill/dashboard.json; do
        if [ -z "$(find "$1/share" -path "$1/share/$file" -size +0)" ]; then
            echo "package.sh: $3: there is no $file" >&2
            exit 1
        fi
    done
    echo "$3: a program ran from it"
}

# The tree without what debuggers read, which is most of it, and with the documents.
put_together() {
    cp -R "$tree" "$stage/$name"
    (
        cd "$stage/$name"
        strip --strip-debug bin/overspill lib/overspill/liboverspill_preload.so \
            lib/liboverspill.so.0 lib/liboverspill.a
        mkdir -p share/doc/overspill
        cp "$root/README.md" "$root/LICENSE-MIT" "$root/LICENSE-APACHE" share/doc/overspill
        cp "$root/packaging/seccomp.json" share/doc/overspill
        for file in prometheus.yml alerts.yml dashboard.json; do
            cp "$root/packaging/prometheus/$file" share/doc/overspill
        done
    )
}

# The same in a directory as distributions have it: below /usr, libraries where those of this
# architecture are, and units of systemd.
as_distributed() {
    DESTDIR=$1 PREFIX=/usr "$stage/$name/install.sh"
    mkdir -p "$1/usr/$2"
    mv "$1"/usr/lib/liboverspill.* "$1/usr/lib/pkgconfig" "$1/usr/$2"
    # By their names pkg-config knows what compilers look through anyway, and leaves it out.
    sed -i -e 's|^prefix=.*|prefix=/usr|' -e "s|^libdir=.*|libdir=\${prefix}/$2|" \
        "$1/usr/$2/pkgconfig/overspill.pc"
    gzip -9n "$1"/usr/share/man/man?/*
    for unit in overspill@.service overspill-metrics.service; do
        install -D -m 644 "$root/packaging/systemd/$unit" "$1/usr/lib/systemd/system/$unit"
    done
}

tarball() {
    tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
    tar -xzf "$out/$name.tar.gz" -C "$scratch"
    DESTDIR="$scratch/root" "$scratch/$name/install.sh"
    try "$scratch/root/usr/local" lib "$name.tar.gz"
    DESTDIR="$scratch/root" "$scratch/$name/install.sh" uninstall
    if [ -n "$(find "$scratch/root" ! -type d)" ]; then
        echo "package.sh: $name.tar.gz: install.sh uninstall leaves files" >&2
        exit 1
    fi
    "$root/packaging/as_installed.sh" "$scratch" "$out/$name.tar.gz"
}

# What the programs in a directory need, as Debian names it. The tool wants a source package.
depends_of() {
    mkdir -p "$scratch/source/debian"
    printf 'Source: overspill\n\nPackage: overspill\nArchitecture: amd64\n' \
        >"$scratch/source/debian/control"
    (cd "$scratch/source" && dpkg-shlibdeps -O -S"$1" "$1/usr/bin/overspill" \
        "$1/usr/lib/overspill/liboverspill_preload.so" \
        "$1/usr/lib/x86_64-linux-gnu/liboverspill.so.0") >"$scratch/said"
    sed -n 's/^shlibs:Depends=//p' "$scratch/said"
}

deb() {
    if ! command -v dpkg-shlibdeps >/dev/null; then
        skipped "the .deb" dpkg-shlibdeps "apt-get install dpkg-dev"
        return
    fi
    into=$stage/deb package=overspill_${version}_amd64.deb
    as_distributed "$into" lib/x86_64-linux-gnu
    # Its policy has libraries without the right to be executed, and completions of zsh elsewhere.
    chmod 644 "$into"/usr/lib/x86_64-linux-gnu/*.so.0 "$into"/usr/lib/overspill/*.so
    mv "$into/usr/share/zsh/site-functions" "$into/usr/share/zsh/vendor-completions"
    cp "$root/packaging/debian/copyright" "$into/usr/share/doc/overspill"
    mkdir "$into/DEBIAN"
    cp "$root/packaging/debian/triggers" "$into/DEBIAN"
    # For packages of programs that use the library.
    echo "liboverspill 0 overspill (>= $version)" >"$into/DEBIAN/shlibs"
    (cd "$into" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2 >DEBIAN/md5sums)
    depends=$(depends_of "$into")
    size=$(du -sk --apparent-size "$into/usr" | cut -f 1)
    sed -e "s|@version@|$version|" -e "s|@depends@|$depends|" -e "s|@size@|$size|" \
        "$root/packaging/debian/control" >"$into/DEBIAN/control"
    chmod -R u=rwX,go=rX "$into"
    dpkg-deb --root-owner-group -Zxz --build "$into" "$out/$package" >/dev/null
    dpkg-deb -x "$out/$package" "$scratch/deb"
    try "$scratch/deb/usr" lib/x86_64-linux-gnu "$package"
    "$root/packaging/as_installed.sh" "$scratch" "$out/$package"
}

rpm() {
    if ! command -v rpmbuild >/dev/null; then
        skipped "the .rpm" rpmbuild "apt-get install rpm, or dnf install rpm-build"
        return
    fi
    package=overspill-$version-1.x86_64.rpm
    as_distributed "$stage/rpm" lib64
    if ! rpmbuild -bb --quiet --target x86_64 --define "_topdir $scratch/rpmbuild" \
        --define "_rpmdir $out" --define "_rpmfilename $package" --define "stage $stage/rpm" \
        --define "release_of_overspill $version" --define "_buildhost localhost" \
        --define "use_source_date_epoch_as_buildtime 1" \
        --define "clamp_mtime_to_source_date_epoch 1" \
        "$root/packaging/rpm/overspill.spec" >"$scratch/said" 2>&1; then
        cat "$scratch/said" >&2
        exit 1
    fi
    if ! command -v rpm2cpio >/dev/null || ! command -v cpio >/dev/null; then
        skipped "running a program from the .rpm" "rpm2cpio and cpio" "they are in packages"
        return
    fi
    mkdir "$scratch/rpm"
    rpm2cpio "$out/$package" | (cd "$scratch/rpm" && cpio -id --quiet)
    try "$scratch/rpm/usr" lib64 "$package"
    "$root/packaging/as_installed.sh" "$scratch" "$out/$package"
}

put_together
tarball
deb
rpm
ls -l "$out"
