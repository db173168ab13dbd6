#!/bin/sh
# Installs the tree that it lies in: the command, its libraries, manual pages, completions.
#
#   [PREFIX=/usr/local] [DESTDIR=DIRECTORY] ./install.sh [install | uninstall]
set -eu

here=$(dirname "$0")
prefix=${DESTDIR:-}${PREFIX:-/usr/local}

# What there is is copied: so this is the one place that need not know it.
install_tree() {
    if [ ! -x "$here/bin/overspill" ]; then
        echo "install: there is no $here/bin/overspill: run make first" >&2
        exit 1
    fi
    (cd "$here" && find bin include lib share -type f -o -type l) | while read -r file; do
        if [ -L "$here/$file" ]; then
            mkdir -p "$(dirname "$prefix/$file")"
            cp -Pf "$here/$file" "$prefix/$file"
            continue
        fi
        mode=644
        if [ -x "$here/$file" ]; then mode=755; fi
        install -D -m "$mode" "$here/$file" "$prefix/$file"
    done
}

# Into the running system: then the loader finds the library for C, by its cache.
renew_cache() {
    if [ -z "${DESTDIR:-}" ] && [ "$(id -u)" -eq 0 ]; then
        PATH=$PATH:/usr/sbin:/sbin ldconfig || echo "install: ldconfig failed" >&2
    fi
}

# By name, since the tree may be gone by then, or that of another version.
uninstall() {
    rm -f "$prefix"/bin/overspill "$prefix"/lib/overspill/liboverspill_preload.so \
        "$prefix"/include/overspill.h "$prefix"/lib/liboverspill.a \
        "$prefix"/lib/liboverspill.so "$prefix"/lib/liboverspill.so.0 \
        "$prefix"/lib/pkgconfig/overspill.pc "$prefix"/share/man/man3/overspill.3 \
        "$prefix"/share/man/man1/overspill.1 "$prefix"/share/man/man1/overspill-*.1 \
        "$prefix"/share/man/man7/overspill-*.7 \
        "$prefix"/share/bash-completion/completions/overspill \
        "$prefix"/share/zsh/site-functions/_overspill \
        "$prefix"/share/fish/vendor_completions.d/overspill.fish
    rm -rf "$prefix"/share/doc/overspill
    if [ -d "$prefix"/lib/overspill ]; then rmdir "$prefix"/lib/overspill; fi
}

case ${1:-install} in
    install)
        install_tree
        renew_cache
        ;;
    uninstall)
        uninstall
        renew_cache
        ;;
    *)
        echo "usage: $0 [install | uninstall]" >&2
        exit 2
        ;;
esac
