//! What `overspill size --help` tells beside the options.

use super::run_help::SWAP_NOTES;

/// What it is.
pub const SIZE_ABOUT: &str = "\
Run a program in little memory, and tell how much it needs

The program runs once, in a budget so small that pages leave memory. Each that
comes back tells how much more memory would have kept it. So afterwards it is
known how long the program takes with every larger budget, where more memory
gains little (the knee), and the least budgets with which it takes at most 5, 10
and 25 % more time than if all fits.

  overspill size -- python3 job.py
  overspill size --report size.html -- sort -S 2G big.txt
  overspill run --memory auto -- python3 job.py";

/// What follows the options.
pub fn size_notes() -> String {
    format!("{SWAP_NOTES}\n{NOTES}")
}

const NOTES: &str = "\
The table goes to standard error, after what the program says:
  budget      a budget of the job, as for `overspill run --memory`
  refaults    pages that leave memory and come back
  of devices  those of them that are read from swap devices
  time        how long the program takes
  more        how much longer that is than if nothing leaves
  denser      the time with Zstandard in place of LZ4 (--set zswap.codec=zstd)
  faster      the time with swap devices that are twice as fast

What is told begins with the budget of the run: give a smaller --memory to know
of smaller ones. The run takes about as long as its first row says. A program
that does something else each time needs something else each time.

What was found is kept in $XDG_STATE_HOME/overspill/profiles (default:
~/.local/state), unless the program fails or --no-save is given. `overspill run
--memory auto` with the same words takes the least budget for at most 10 % more
time from there.

Exit status: as that of `overspill run`.";
