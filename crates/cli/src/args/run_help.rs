//! What `overspill run --help` tells beside the options.

use overspill::config::{
    CachePartition, Config, Invalidate, OutOfRoom, Recheck, SETTINGS, TierSlots,
};
use overspill::frame::Pick;
use overspill::slot::{Batching, SlotLock};

/// What it is.
pub const RUN_ABOUT: &str = "\
Run a program with its memory in a budget

The program's heap and private anonymous mappings get --memory bytes of RAM. Pages beyond that are \
compressed within the budget, and what does not fit there goes to --swap. Everything is checked before \
the program starts.

  overspill run --memory 2G -- python3 job.py
  overspill run --memory 512M --swap /scratch:20G --stats -- sort -S 8G big.txt
  OVERSPILL_MEMORY=1G overspill run -- make test";

/// What each setting means; its values are in [`SETTINGS`].
const MEANINGS: &[(&str, &str)] = &[
    ("in", "how stored pages are brought in"),
    ("out", "how pages are taken out; move refuses pages pinned for DMA"),
    ("background", "a thread reclaims ahead of need"),
    (
        "workers",
        "threads that store pages ahead of need; auto is one for four processors, up to four",
    ),
    (
        "folio",
        "most pages that one fault brings in; auto: 16, from devices up to 64; 1 turns folios off",
    ),
    (
        "compressed",
        "percent of the budget that compressed pages may take; auto follows what pays, 0 turns \
         the tier off",
    ),
    (
        "zswap.codec",
        "what packs compressed pages; zstd (level 3, or 1 to 19, or -7 to -1) is denser and \
         slower, auto takes it while that pays, none keeps them as they are",
    ),
    (
        "zswap.recompress",
        "compressed pages that stay cold are packed more densely: when no device has room, or \
         before they go to one",
    ),
    (
        "zswap.slots",
        "compressed pages have swap slots of their own and get one on a device when they are \
         written to it, or have that from the beginning",
    ),
    (
        "zswap.invalidate",
        "what is looked at before a lock is taken to forget the compressed copy of a slot given \
         back",
    ),
    ("zswap.incompressible", "pages that do not compress go to a device, or are kept as they are"),
    (
        "zswap.keep",
        "pages read from compressed memory keep their copies there until they are written to, \
         while it has room",
    ),
    ("same_filled", "pages whose 32-bit words are all the same are kept as that word"),
    (
        "clean",
        "pages read from a device leave memory without being written again, until they are \
         written to",
    ),
    ("cache.partition", "how much swap space, or how many frames, share a lock of the swap cache"),
    ("swapoff.run", "most pages read with one operation from a device that is taken out of use"),
    ("swapoff.depth", "how many such operations are in flight"),
    ("readahead", "most pages read from a device around one that is missing; 1 turns it off"),
    ("frame.percpu", "each processor keeps a list of free page frames"),
    (
        "frame.pick",
        "frames that go back in bulk are chosen before the zone's lock is taken, or under it",
    ),
    (
        "slot.lock",
        "swap slots are handed out and taken back under the lock of their cluster, or of the device",
    ),
    (
        "slot.cache",
        "each processor keeps this many swap slots to hand out, and collects as many that are freed",
    ),
    ("slot.cpu_cluster", "each processor takes swap slots from a cluster of its own"),
    (
        "swap.batch",
        "swap slots, and pages of the swap cache, are handled many in one hold of a lock, rather \
         than one",
    ),
    (
        "reclaim.max",
        "most threads that reclaim for themselves at once, the others wait; auto: two a NUMA node",
    ),
    (
        "reclaim.recheck",
        "when those look for frames: whenever they wake, or after a second, for 4 x the high \
         watermark",
    ),
    (
        "watermark.min",
        "what of the budget faults leave free: below it threads reclaim for themselves; auto: \
         1/64, up to 8M",
    ),
    (
        "watermark.low",
        "free memory at which reclaim in the background begins; auto: 1/256 of the budget above min",
    ),
    ("watermark.high", "free memory at which it stops; auto: 1/256 of the budget above low"),
    (
        "oom",
        "when there is no room: the access fails with SIGBUS, or the process is killed with a \
         report",
    ),
    ("oom.wait", "how long reclaim may be fruitless before there is no room, up to 10s"),
    ("uring", "swap I/O may use io_uring"),
    ("vector_drop", "many pages are dropped with one process_madvise"),
    ("window", "address space reserved for managed memory"),
];

fn default_value(setting: &str, config: &Config) -> String {
    let switch = |on| if on { "on" } else { "off" }.to_owned();
    match setting {
        "background" => switch(config.background),
        "folio" => config.folio.to_string(),
        "compressed" => config.compressed_max.to_string(),
        "zswap.codec" => config.zswap_codec.to_string(),
        "zswap.recompress" => config.zswap_recompress.to_string(),
        "zswap.slots" => match config.zswap_slots {
            TierSlots::Own => "own".to_owned(),
            TierSlots::Device => "device".to_owned(),
        },
        "zswap.invalidate" => match config.invalidate {
            Invalidate::Always => "always".to_owned(),
            Invalidate::Empty => "empty".to_owned(),
            Invalidate::EmptyLookup => "empty+lookup".to_owned(),
        },
        "zswap.incompressible" => {
            if config.keeps_incompressible { "keep" } else { "device" }.to_owned()
        }
        "same_filled" => switch(config.same_filled),
        "cache.partition" => match config.cache_partition {
            CachePartition::Device => "device".to_owned(),
            CachePartition::Bytes(bytes) => format!("{}M", bytes >> 20),
        },
        "swapoff.run" => config.swapoff_run.to_string(),
        "swapoff.depth" => config.swapoff_depth.to_string(),
        "readahead" => config.readahead_max.to_string(),
        "frame.percpu" => switch(config.frame.percpu),
        "frame.pick" => match config.frame.pick {
            Pick::Outside => "outside".to_owned(),
            Pick::Inside => "inside".to_owned(),
        },
        "slot.lock" => match config.slot.lock {
            SlotLock::Cluster => "cluster".to_owned(),
            SlotLock::Device => "device".to_owned(),
        },
        "slot.cache" => if config.slot.cache { "64" } else { "off" }.to_owned(),
        "slot.cpu_cluster" => switch(config.slot.cpu_cluster),
        "swap.batch" => switch(config.slot.batching == Batching::Whole),
        "reclaim.recheck" => match config.reclaim_recheck {
            Recheck::Wake => "wake",
            Recheck::Timed => "timed",
        }
        .to_owned(),
        "oom" => match config.oom {
            OutOfRoom::Sigbus => "sigbus",
            OutOfRoom::Kill => "kill",
        }
        .to_owned(),
        "oom.wait" => format!("{}s", config.oom_wait.0.as_secs()),
        "uring" => switch(config.uring),
        "vector_drop" => switch(config.vector_drop),
        "window" => config.window.to_string(),
        _ => "auto".to_owned(),
    }
}

/// What follows the options.
pub fn run_notes() -> String {
    let config = Config::default();
    let mut notes = format!("{SWAP_NOTES}\nSettings (--set KEY=VALUE):\n");
    for (name, values) in SETTINGS {
        let meaning =
            MEANINGS.iter().find(|(key, _)| key == name).map_or("", |(_, meaning)| meaning);
        notes += &format!(
            "  {name:<16} {meaning}\n{:19}{values} [default: {}]\n",
            "",
            default_value(name, &config)
        );
    }
    notes + NOTES
}

const SWAP_NOTES: &str = "\
Swap devices (--swap PATH[:SIZE][,KEY=VALUE...]):
  prio=N          0 to 32767; higher is filled first, equal ones in turn, run by run. One without
                  comes after all that have one, and after those named before it
  label=NAME      a name to tell it by
  discard=once    a part of the device is discarded before it is first used
  discard=pages   also when no page is left in it

A RAM device (--swap ram:SIZE[,KEY=VALUE...]) simulates a device, for tests and measurements. Its \
memory is NOT part of the budget: it comes on top, a device of SIZE for each process.
  latency=TIME    how long each operation takes at least, such as 20us
  bandwidth=SIZE  bytes a second, all operations together
  faults=RATE     this share of operations, such as 0.01, goes wrong at random: an error (eio),
                  cut short (short), no room (full), much slower (slow), a bit flipped in what is
                  read (flip) or, more rarely, in what is written for good (rot);
                  RATE:eio+slow names some of these kinds
  seed=N          another sequence of faults

Several may be named in one option: --swap /fast:4G,prio=1,/slow is two devices.
";

const NOTES: &str = "
What is managed: the malloc heap (C, C++ and what builds on them) and private anonymous mappings. What is not: \
thread stacks, file mappings, shared memory, the pages of the program and its libraries. These stay with the \
kernel and come on top of the budget, as do overspill's own tables (1% or less).

Programs that cannot be run: statically linked ones, set-user-ID ones and ones with file capabilities (the \
dynamic loader ignores LD_PRELOAD for them), and programs for another architecture.

Each process of the tree has a pool and a budget of its own for now: a program that starts four others may use \
five budgets. A forked child shares its parent's budget until it execs or exits.

Exit status: that of the program; 128 + N if signal N killed it; 125 if overspill itself failed; 126 if the \
program cannot be executed, 127 if it was not found; 2 for a mistake on the command line.

Signals TERM, HUP, INT, QUIT, USR1 and USR2 that are sent to overspill are passed on to the program.

While the program runs, `overspill stat` shows what it does, `overspill set` changes its budget, `overspill reclaim` \
takes pages out of memory, and `overspill swapon` and `overspill swapoff` show and change its swap devices.

Environment: each option has a variable, named with it above; the command line wins. OVERSPILL_PRELOAD names the \
preload library where it is not found by itself, OVERSPILL_RUNTIME_DIR the directory of the control socket. OVERSPILL_SIMULATE, a facility for tests, takes a list of \
no-uffd, no-move, no-kernel-faults, no-uring and behaves as on a machine that lacks these.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_explains_every_setting_with_its_real_default() {
        let (help, config) = (run_notes(), Config::default());
        for (name, values) in SETTINGS {
            assert!(MEANINGS.iter().any(|(key, _)| key == name), "{name}");
            let default = default_value(name, &config);
            assert!(help.contains(&format!("{values} [default: {default}]")), "{name}");
            // What is shown as the default changes nothing.
            let mut set = Config::default();
            set.apply_settings(&format!("{name}={default}")).unwrap();
            assert_eq!(format!("{set:?}"), format!("{config:?}"), "{name}");
        }
    }
}
