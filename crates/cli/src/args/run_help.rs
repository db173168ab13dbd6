//! What `overspill run --help` tells beside the options.

use super::settings;

/// What it is.
pub const RUN_ABOUT: &str = "\
Run a program with its memory in a budget

The program's heap and private anonymous mappings get --memory bytes of RAM.
Pages beyond that are compressed within the budget, and what does not fit there
goes to --swap. Everything is checked before the program starts.

  overspill run --memory 2G -- python3 job.py
  overspill run --memory 512M --swap /scratch:20G --stats -- sort -S 8G big.txt
  OVERSPILL_MEMORY=1G overspill run -- make test";

/// What follows the options.
pub fn run_notes() -> String {
    format!("{SWAP_NOTES}\nSettings (--set KEY=VALUE):\n{}{NOTES}", settings::list())
}

/// How swap devices are named.
pub const SWAP_NOTES: &str = "\
Swap devices (--swap PATH[:SIZE][,KEY=VALUE...]):
  prio=N          0 to 32767: higher is filled first, equal ones in turn, run by
                  run. A device without one comes after all that have one, and
                  after those named before it
  label=NAME      a name to tell it by
  insecure=on     a file of another user's, or that others may read or write, is used
                  all the same
  discard=once    a part of the device is discarded before it is first used
  discard=pages   also when no page is left in it
  crypt=off       pages lie there as they are, not encrypted and authenticated

A RAM device (--swap ram:SIZE[,KEY=VALUE...]) simulates a device, for tests and
measurements. Its memory is NOT part of the budget: it comes on top, a device of
SIZE for each process.
  latency=TIME    how long each operation takes at least, such as 20us
  bandwidth=SIZE  bytes a second, all operations together
  faults=RATE     this share of operations, such as 0.01, goes wrong at random: an
                  error (eio), cut short (short), no room (full), much slower
                  (slow), a bit flipped in what is read (flip) or, more rarely,
                  in what is written for good (rot); RATE:eio+slow names some of
                  these kinds
  seed=N          another sequence of faults

Several may be named in one option: --swap /fast:4G,prio=1,/slow is two devices.
";

const NOTES: &str = "
What is managed: the malloc heap (C, C++ and what builds on them) and private
anonymous mappings. What is not: thread stacks, file mappings, shared memory,
the pages of the program and its libraries. These stay with the kernel and come
on top of the budget, as do overspill's own tables (1% or less). When they were
more than a tenth of it and 8 MiB, the run ends with a line that says so.

Programs that cannot be run: set-user-ID ones and ones with file capabilities
(the dynamic loader ignores LD_PRELOAD for them), statically linked ones with
--fault thread, and programs for another architecture.

All processes of the tree share the budget, however they were started. Pages go
to those that need them most; one that is at rest keeps 128 KiB, one that works
has 4 MiB at least.

Exit status: that of the program; 128 + N if signal N killed it; 125 if
overspill itself failed; 126 if the program cannot be executed, 127 if it was
not found; 2 for a mistake on the command line; 123 with --strict, if the
program succeeded and too much memory was not managed.

Signals TERM, HUP, INT, QUIT, USR1 and USR2 that are sent to overspill are
passed on to the program.

While the program runs, `overspill stat` shows what it does, `overspill set`
changes its budget, `overspill reclaim` takes pages out of memory, and
`overspill swapon` and `overspill swapoff` show and change its swap devices.

Environment: each option has a variable, named with it above; the command line
wins. OVERSPILL_PRELOAD names the preload library where it is not found by
itself, OVERSPILL_RUNTIME_DIR the directory of the control socket. What is
started with OVERSPILL=off by a program of the job leaves it: it is unmanaged.";
