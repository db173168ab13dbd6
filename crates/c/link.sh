#!/bin/sh
# Makes the shared library of the static one: with versions of its symbols, and a name that changes
# when the interface breaks.
#
#   link.sh liboverspill_c.a DIRECTORY     makes DIRECTORY/liboverspill.so.0 and what links to it
set -eu

here=$(cd "$(dirname "$0")" && pwd)
archive=$1 directory=$2
# nodelete: its threads and its handlers of signals and forks stay, also after a dlclose.
${CC:-cc} -shared -o "$directory/liboverspill.so.0" \
    -Wl,-soname,liboverspill.so.0 -Wl,--version-script="$here/overspill.map" \
    -Wl,-z,nodelete,-z,relro,-z,now -Wl,--gc-sections \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -lgcc_s -lpthread -ldl -lm
ln -sf liboverspill.so.0 "$directory/liboverspill.so"
