#!/bin/sh
# Installs a package, builds the C example against it as its users do, runs that and a program under
# overspill, and removes the package.
#
#   as_installed.sh DIRECTORY PACKAGE     DIRECTORY is for what is written meanwhile
#
# The root is that of this machine, with its compiler, as it is without overspill. What is written
# goes elsewhere (an overlay, in a mount namespace of its own), so that the machine stays as it is.
# That takes root.
set -eu

package=$(basename "$2")
case $package in
    *.deb) libraries=/usr/lib/x86_64-linux-gnu ;;
    *.rpm) libraries=/usr/lib64 ;;
    *.tar.gz) libraries=/usr/local/lib ;;
esac

fail() {
    echo "as_installed.sh: $package: $1" >&2
    exit 1
}

add() {
    case $package in
        *.deb) dpkg --install "/mnt/$package" ;;
        *.rpm) "$@" --install --nodeps "/mnt/$package" ;;
        *.tar.gz) tar -xzf "/mnt/$package" -C /mnt && "/mnt/${package%.tar.gz}/install.sh" ;;
    esac
}

remove() {
    case $package in
        *.deb) dpkg --purge overspill ;;
        *.rpm) "$@" --erase overspill ;;
        *.tar.gz) "/mnt/${package%.tar.gz}/install.sh" uninstall ;;
    esac
}

there_is() {
    find /usr \( -name '*overspill*' -o -lname '*overspill*' \) -print
}

# In that root, where what is needed lies in /mnt.
inside() {
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
    set -- rpm
    if [ -e /etc/debian_version ]; then
        # Debian's rpm installs nothing unless it is told to, and nothing there looks in lib64.
        set -- rpm --force-debian
        case $package in
            *.rpm) export PKG_CONFIG_LIBDIR=$libraries/pkgconfig LD_LIBRARY_PATH=$libraries ;;
        esac
    fi
    for tool in cc pkg-config; do
        if ! command -v "$tool" >/dev/null; then
            echo "SKIPPED: installing $package: there is no $tool" >&2
            return
        fi
    done
    before=$(there_is)
    add "$@" >/mnt/said 2>&1 || fail "it cannot be installed: $(cat /mnt/said)"
    flags=$(pkg-config --cflags --libs overspill) || fail "pkg-config does not know it"
    # shellcheck disable=SC2086 # a list of words
    cc -Wall -Werror -o /mnt/job /mnt/larger_than_ram.c $flags || fail "the example is not built"
    found=$(ldd /mnt/job | sed -n 's/.*liboverspill\.so\.0 => \(.*\) (.*/\1/p')
    if [ "$(readlink -f "$found")" != "$(readlink -f "$libraries")/liboverspill.so.0" ]; then
        fail "the example finds its library at '$found' and not in $libraries"
    fi
    if [ "$(readlink "$libraries/liboverspill.so")" != liboverspill.so.0 ]; then
        fail "liboverspill.so is not a link to liboverspill.so.0"
    fi
    if overspill probe >/mnt/said; then
        /mnt/job 16 /mnt || fail "the example does not run"
        said=$(overspill run --memory 64M -- sh -c 'echo works')
        [ "$said" = works ] || fail "a program under overspill said '$said'"
    else
        echo "SKIPPED: running anything: overspill probe says that nothing runs here" >&2
    fi
    remove "$@" >/mnt/said 2>&1 || fail "it cannot be removed: $(cat /mnt/said)"
    after=$(there_is)
    [ "$before" = "$after" ] || fail "it leaves what was not there: $after"
    echo "$package: it was installed, the example was built and ran, and it was removed"
}

# A root whose changes lie in a directory, in this mount namespace.
make_root() {
    mount -t tmpfs tmpfs "$1" && mkdir "$1/root" "$1/upper" "$1/work" &&
        mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root" &&
        mount -t tmpfs tmpfs "$1/root/usr/local" && mount -t tmpfs tmpfs "$1/root/tmp" &&
        for file in proc sys dev; do mount --rbind "/$file" "$1/root/$file" || return; done
}

case ${3:-outside} in
    outside)
        if ! unshare --mount true 2>/dev/null; then
            echo "SKIPPED: installing $package: there is no root to do it in (it takes root)" >&2
            exit 0
        fi
        rm -rf "$1/installed"
        mkdir -p "$1/installed/mnt" "$1/installed/over"
        cp "$2" "$0" "$(dirname "$0")/../crates/c/examples/larger_than_ram.c" "$1/installed/mnt"
        exec unshare --mount "$0" "$1" "$2" root
        ;;
    root)
        if ! make_root "$1/installed/over" 2>"$1/installed/said"; then
            why=$(head -n 1 "$1/installed/said")
            echo "SKIPPED: installing $package: there is no root to do it in ($why)" >&2
            exit 0
        fi
        mount --bind "$1/installed/mnt" "$1/installed/over/root/mnt"
        exec chroot "$1/installed/over/root" /mnt/as_installed.sh / "$package" inside
        ;;
    inside) inside ;;
esac
