//! What `--help` tells of the commands that look at running jobs, beside their options.

/// Of `overspill set`.
pub const SET_ABOUT: &str = "\
Change the budget of a running job

All processes of the job together get another budget. What does not fit any
more is compressed or written to the swap devices while the program goes on;
then one line says what was and what is.

  $ overspill set --pid 384 --memory 96M
  256 MiB -> 96 MiB, 88.4 MiB in use by 1 process";

/// The rest.
pub const SET_NOTES: &str = "\
A job is what one `overspill run` started: all its processes share one budget,
of which each has what it needs more than the others, but never less than the
smallest budget while it works. So the job is afterwards as if it had been
started with --memory SIZE.

A smaller budget does not by itself end a program: what cannot be taken out of
memory, because there is no swap or it is full, stays, and the program keeps
room to go on. What it allocates afterwards has to fit. A larger budget is in
force at once, up to the RAM of the machine.

Exit status: 0 if the budget is kept; 1 if it is not, yet, or cannot be, or
there is no such job; 2 for a mistake on the command line.

Environment: OVERSPILL_RUNTIME_DIR, as it was for `overspill run`: where the
control sockets of jobs are (default: overspill in $XDG_RUNTIME_DIR, else
/run/overspill for root, /tmp/overspill-UID for others).";

/// Of `overspill stat`.
pub const STAT_ABOUT: &str = "\
Show what a running job does: memory, swapping, faults, waiting

One line in vmstat's layout for the time since the job began; with INTERVAL then
a line for each INTERVAL seconds, COUNT lines in all, or until the job ends. All
processes of the job are added up.

  overspill stat
  overspill stat --pid 384 1
  overspill stat --latency 2 5
  overspill stat --json 1 >log.jsonl";

/// The rest.
pub const STAT_NOTES: &str = "\
Columns; memory in KiB, all from `si` on in a second:
  p            processes with managed memory
  swpd         space of swap devices in use
  free         what pages could have of the budget, and do not
  res          pages that are mapped
  cache        pages in the swap cache: in memory, and not mapped
  other        memory that is not managed: stacks, shared memory, tables
  stored pool  compressed pages: their size by themselves, and the memory that
               they take
  ratio        the one for each of the other
  zi zo        KiB unpacked and packed
  si so        KiB read from swap devices and written to them
  rd wr        operations on swap devices
  minor major  faults: those of which the page was in memory, or none yet, and
               those that read a device
  some full    percent of the time in which a thread waited for memory, and in
               which none got on

--psi prints two lines as /proc/pressure/memory: the averages over 10, 60 and
300 seconds, and microseconds in all. A thread waits while a fault of its reads
a device, reclaims for itself, or waits for room. `full` is told by processor
time: it is the part of `some` that is left when what the program worked
meanwhile is taken off, which is exact for one thread and an estimate for
several. Of several processes the time is shown in which any of them waits.

--latency tells how long faults took to serve, by where their page came from:
nowhere (zero), the swap cache, compressed memory, a device, or its place. Times
are too long by an eighth at most. Faults served by a thread wait for it, which
is not in it.

--json prints an object a line with all of this, every counter by name, and
times of faults within the interval.

Exit status: 0 if COUNT lines were printed, the job has ended, or nobody reads
the output any more; 1 if there is no such job, or it cannot be reached; 2 for a
mistake on the command line.

Environment: OVERSPILL_RUNTIME_DIR, as for `overspill set`.";

/// Of `overspill top`.
pub const TOP_ABOUT: &str = "\
Watch running jobs in the terminal, and change them

All your jobs, or one, with their budgets, memory, swap devices and processes,
faults by where their pages came from, and graphs of the last five minutes. What
is done to a job by a key is what `overspill set`, `overspill reclaim` and
`overspill swapoff` do, and is asked about before.

  overspill top
  overspill top --pid 384 0.5
  overspill top --once";

/// The rest.
pub const TOP_NOTES: &str = "\
Keys:
  Up Down j k  mark a job
  Enter        open it: its processes, its devices, times of its faults
  Esc          back to the jobs
  s            sort by what is used, by faults, by swap, by stalls, by number
  b            change the budget
  r            take pages out of memory
  o            take a swap device out of use, by its digit; Up and Down show
               others where there are many
  q            end

Columns and figures are those of `overspill stat`: STALL% is the part of the
time in which something waited for memory and nothing got on. Times of faults
are those since the last look, in powers of two. The graphs show the highest
figure of the looks that share a column.

It takes 80 columns and 24 lines or more, and shows less on fewer. There are no
colours if NO_COLOR is set, and graphs of ASCII where the locale has no UTF-8.

Exit status: 0 after q, a signal, or the end of the job that --pid names; 1 if
there is no such job; 2 for a mistake on the command line, or without a
terminal.

Environment: NO_COLOR; OVERSPILL_RUNTIME_DIR, as for `overspill set`.";

/// Of `overspill reclaim`.
pub const RECLAIM_ABOUT: &str = "\
Take pages of a running job out of memory

The processes of the job give up SIZE of memory together, as with memory.reclaim
of a memory cgroup: pages that were not used lately are compressed, or written
to the swap devices, and come back when they are touched. The budget stays as it
is.

  $ overspill reclaim --pid 384 64M
  reclaimed 64.2 MiB of 64 MiB from 2 processes";

/// The rest.
pub const RECLAIM_NOTES: &str = "\
What is counted are pages that leave. Compressed pages stay in memory as far as
they do not get smaller, so that the memory in use falls by less; more of it
goes on to the swap devices when little else is left.

Exit status: 0 if SIZE was reclaimed, or more; 1 if it was less, and a sentence
says why, or there is no such job; 2 for a mistake on the command line. A
request that is not through when the time is over is given up. Only one counts
at a time: a new one takes the place of another.

Environment: OVERSPILL_RUNTIME_DIR, as for `overspill set`.";
