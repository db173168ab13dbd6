//! What `--help` tells of `overspill swapon` and `overspill swapoff`, beside their options.

/// Of `overspill swapon`.
pub const SWAPON_ABOUT: &str = "\
Give a running job another swap device, or show those that it has

Every process of the job uses the device from then on, those that it starts
later too. Without a device, or with --show, the devices of the job are shown,
in the columns of swapon(8).

  overspill swapon --pid 384 /scratch:20G
  overspill swapon --pid 384 -p 5 --discard -L fast /dev/nvme0n1p3
  overspill swapon --show
  overspill swapon --show=NAME,USED,UUID --bytes --json";

/// The rest.
pub const SWAPON_NOTES: &str = "\
A device is named as with `overspill run --swap` (see there for what KEY can
be). What follows its path counts for it alone; the options count for all that
are named, where their paths say nothing else. A file or block device is
OVERWRITTEN; it is refused if it holds anything but swap. What the job uses
already is refused, as is what the kernel uses.

Columns: NAME, TYPE (directory, file, partition, ram), SIZE, USED by all
processes of the job, PRIO, UUID, LABEL. A device that is being taken out of use
is still there.

Exit status: 0 if the job uses the devices, or they were shown; 1 if not, and a
sentence says why; 2 for a mistake on the command line. A device that some
processes cannot open is in use in the others, and it says so.

Environment: OVERSPILL_RUNTIME_DIR, as for `overspill set`.";

/// Of `overspill swapoff`.
pub const SWAPOFF_ABOUT: &str = "\
Take swap devices of a running job out of use, while it runs

What is on the device goes to memory as far as the budget has room, else to
compressed memory or to other devices. Then every process of the job closes it,
and those that the job starts later do not open it. The job goes on meanwhile.

  overspill swapoff --pid 384 /scratch
  overspill swapoff --pid 384 -L fast
  overspill swapoff --pid 384 -a";

/// The rest.
pub const SWAPOFF_NOTES: &str = "\
A device is named by its path, its label or its UUID; `overspill swapon
--show=NAME,LABEL,UUID` tells them. Several are taken out of use one after the
other.

If nothing takes the pages, the device stays in use and all is as before. So it
is after Ctrl-C, or SIGTERM: what has left the device then need not leave it
again when the command is run another time. It waits for every process of the
job; for those that are stopped it waits for 5 s, and they do their part when
they are continued.

On a terminal a bar shows how far it is; elsewhere, with -v, a line each second
does.

Exit status, as that of swapoff(8); those of several devices are combined
(bitwise or):
  0        the devices are out of use
  2        nothing takes the pages: the device stays in use
  4        it failed otherwise, and a sentence says why
  16       a mistake on the command line
  32, 64   with -a: 32 if all failed, 64 if some did
  64       also if a device is out of use, and some of its pages could not be
           read: who touches one gets SIGBUS, and nobody else
  128 + N  signal N ended it

Environment: OVERSPILL_RUNTIME_DIR, as for `overspill set`.";
