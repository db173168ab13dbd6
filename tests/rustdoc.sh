#!/bin/sh
# rustdoc as `make doc` calls it: of the library of the command what is private is documented too,
# since there is little else. cargo can be told so for all packages of a run, or for a run of one,
# whose features are others: nearly everything would be compiled once more.
case " $* " in
*" --crate-name overspill_cli "*) set -- "$@" --document-private-items ;;
esac
exec rustdoc "$@"
