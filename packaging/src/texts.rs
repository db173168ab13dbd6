//! What the manual pages say beside the command's own help.

/// What is added to a page.
#[derive(Default)]
pub struct Texts {
    /// As the command's help has it after the options.
    pub notes: &'static str,
    /// Files, and what is in each.
    pub files: &'static [(&'static str, &'static str)],
}

/// What is added to the page of that name.
pub fn of(page: &str) -> Texts {
    match page {
        "overspill" => Texts { notes: OVERSPILL, files: FILES },
        "overspill-run" | "overspill-size" => Texts { files: FILES, ..Texts::default() },
        "overspill-probe" => Texts { notes: PROBE, ..Texts::default() },
        "overspill-settings" => Texts { notes: SETTINGS, ..Texts::default() },
        _ => Texts { files: SOCKETS, ..Texts::default() },
    }
}

const OVERSPILL: &str = "\
It needs Linux 5.7 or later on x86-64 with glibc. The malloc heap and private
anonymous mappings are managed. Stacks, file mappings and shared memory are not:
they take their part of the budget. Statically linked programs, set-user-ID
programs and programs for musl cannot be run. Inside of a container userfaultfd
has to be allowed: `overspill probe` says what is missing.

Exit status: that of the program, with `overspill run`. Else 0 if the command
did what it was asked, 1 if it did not, and 2 for a mistake on the command line;
the page of each command has its own.

Environment: each option of `overspill run` has a variable, named in
overspill-run(1). OVERSPILL_RUNTIME_DIR names the directory of the control
sockets.

  overspill probe
  overspill run --memory 2G -- python3 job.py
  overspill run --memory 512M --swap /scratch:20G --stats -- sort -S 8G big.txt
  overspill stat 1
  overspill set --pid 384 --memory 96M";

const PROBE: &str = "  overspill probe && overspill run --memory 2G -- python3 job.py";

const SETTINGS: &str = "\
The same is in overspill-settings(7).

Exit status: 0; 2 for a mistake on the command line.";

const SOCKETS: &[(&str, &str)] = &[(
    "$XDG_RUNTIME_DIR/overspill, /run/overspill, /tmp/overspill-UID",
    "Control sockets of running jobs: the first if the variable is set, else the second for root \
     and the third for others.",
)];

const FILES: &[(&str, &str)] = &[
    ("$TMPDIR, /var/tmp", "Where the swap file lies, which has no name, unless `--swap` says."),
    SOCKETS[0],
    (
        "$XDG_STATE_HOME/overspill/profiles, ~/.local/state/overspill/profiles",
        "What `overspill size` has found, a file a command.",
    ),
    (
        "/dev/userfaultfd",
        "Whoever may open it can have faults served by a thread, and needs no right to call \
         userfaultfd(2).",
    ),
];

/// How settings are given.
pub const SETTINGS_SYNOPSIS: [&str; 2] = [
    "`overspill run` `--set` KEY=VALUE[,...] [OPTIONS] `--` CMD [ARGS]...",
    "`OVERSPILL_SET`=KEY=VALUE[,...] `overspill run` [OPTIONS] `--` CMD [ARGS]...",
];

/// What they are.
pub const SETTINGS_DESCRIPTION: &str = "\
The defaults suit most programs. `--set` changes settings for a job, and may be
repeated; the variable OVERSPILL_SET does the same. A key that does not exist,
or a value that it does not take, is refused with those that there are.
`overspill settings` lists them.";

/// How they are used.
pub const SETTINGS_EXAMPLES: &str = "\
A slow or small device: pages are packed more densely, so that fewer are read
and written.

  overspill run --memory 2G --set zswap.codec=zstd:1 -- python3 job.py

A program that handles SIGBUS itself when there is no room:

  overspill run --memory 2G --set oom=sigbus -- ./job

A limit of address space (`ulimit -v`):

  overspill run --memory 2G --set window=64G -- ./job";

/// What the C interface is, for the line of names.
pub const INTERFACE_NAME: &str = "regions of memory larger than their budget of RAM";

/// How it is used.
pub const INTERFACE_DESCRIPTION: &str = "\
A pool is a budget of RAM with everything behind it: a compressed tier and swap
devices. A region is memory of a pool, and may be larger than the budget: what
does not fit is compressed, or written to a device, and comes back when it is
touched.

Each call returns OVERSPILL_OK, or a code and does nothing. `overspill_last_message()`
is a sentence about the last failure of the calling thread that says what to do.
All calls may be made by several threads at once. A handle of a pool that was
closed, and an address that is in no region, are told from others.

In signal delivery, which is the default, a system call fails with EFAULT on
memory that is out: hold it meanwhile, copy it, or open the pool in thread
delivery. The library has a handler of SIGBUS then, and passes on what is not
its own to the one that was there before.

A child of fork(3) has the pools with the same content, and shares their budget.
One of `_Fork`, vfork(2) or clone(2) has none: each call says so there, and what
it reads of a region may be zeros. A bug of the library ends the process with a
message; nothing unwinds into C.";

/// How a program is made with it.
pub const INTERFACE_EXAMPLES: &str = "\
  cc -o job job.c $(pkg-config --cflags --libs overspill)

Options of a pool of 2 GiB with a swap file:

  overspill_options options = OVERSPILL_OPTIONS_INIT;
  options.memory = 2ul << 30;
  options.swap = \"/scratch:20G\";";
