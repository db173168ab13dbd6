//! Every setting, every baseline, and kernels without what the engine prefers: a program computes
//! the same, and counters show that the setting was in force.

use overspill_tests::process::{Outcome, run};
use overspill_tests::stats::Report;
use overspill_tests::{Scratch, TIME_LIMIT, clean, overspill};
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Steps of `mixed` for each setting. It does 800 by itself; 120 are enough for the counters of
/// every setting to show, in a third of the time.
const MIXED_STEPS: &str = "120";

static NATIVE: LazyLock<Outcome> = LazyLock::new(|| {
    let program = SCRATCH.program("mixed.c");
    run(clean(Command::new(program).arg(MIXED_STEPS)), TIME_LIMIT)
});

/// Runs `mixed` with some settings, and variables of the environment; returns its statistics.
fn mixed(name: &str, settings: &str, variables: &[(&str, &str)]) -> Option<Report> {
    let overspill = overspill(&SCRATCH)?;
    let room = SCRATCH.room(name);
    let report = room.path.join("stats.json");
    let mut command = Command::new(overspill);
    clean(&mut command)
        .args(["run", "--memory", "16M", "--swap"])
        .arg(&room.path)
        .arg("--stats-json")
        .arg(&report);
    let program = SCRATCH.program("mixed.c");
    command.args(["--set", settings, "--"]).arg(&program).arg(MIXED_STEPS);
    command.current_dir(&room.path).env("XDG_RUNTIME_DIR", &room.path);
    command.envs(variables.iter().copied());
    let outcome = run(&mut command, TIME_LIMIT);
    assert!(NATIVE.status == 0, "{:?}", *NATIVE);
    assert_eq!(outcome, *NATIVE, "left: under overspill with {settings} {variables:?}");
    let report = Report::read(&report);
    report.check(true);
    Some(report)
}

/// A test that `mixed` passes with settings and baselines, and that counters show them to have been
/// in force.
macro_rules! forced {
    ($($name:ident: $set:literal, $baselines:literal, zero $zero:expr, some $some:expr);* $(;)?)
    => {
        $(#[test] fn $name() {
            let zero: &[&str] = &$zero;
            let some: &[&str] = &$some;
            let variables = [("OVERSPILL_BASELINES", $baselines)];
            let Some(report) = mixed(stringify!($name), $set, &variables) else { return };
            for counter in zero {
                assert_eq!(report.total(counter), 0, "{counter}");
            }
            for counter in some {
                assert!(report.total(counter) > 0, "{counter}");
            }
        })*
    };
}

/// Nothing is reclaimed ahead of need. What other memory takes of the budget is not that.
#[test]
fn no_background() {
    let variables = [("OVERSPILL_BASELINES", "background=off")];
    let Some(report) = mixed("no_background", "", &variables) else { return };
    let [background, direct] = ["pgsteal_kswapd", "pgsteal_direct"].map(|name| report.total(name));
    assert!(direct > 8 * background, "{background} and {direct} pages");
}

forced! {
    out_by_move: "out=move", "", zero [], some ["out_moved"];
    out_by_drop: "out=drop", "", zero ["out_moved"], some ["out_dropped"];
    in_by_copy: "", "in=copy", zero ["in_moved"], some ["in_copied"];
    in_by_move: "", "in=move", zero [], some ["in_moved"];
    no_folios: "folio=1", "", zero ["fault_around"], some [];
    large_folios: "folio=64", "", zero [], some ["fault_around"];
    high_watermarks: "watermark=10%/20%/30%", "", zero [], some ["pgsteal_kswapd"];
    no_compression: "compressed=0", "", zero ["zswpout", "zswpin"], some ["pswpout", "pswpin"];
    much_compression: "compressed=90", "", zero [], some ["zswpout", "zswpin"];
    always_clean: "compressed=0", "clean=on", zero [], some ["clean_dropped", "clean_written"];
    never_clean: "compressed=0", "clean=off",
        zero ["clean_dropped", "clean_written"], some ["pswpin"];
    much_readahead: "readahead=64,folio=1,compressed=0", "",
        zero [], some ["swap_ra", "swap_ra_hit"];
    no_readahead: "readahead=1,folio=1,compressed=0", "",
        zero ["swap_ra", "swap_ra_hit"], some ["pswpin"];
    one_partition: "", "cache.partition=device", zero [], some ["swap_cache_lock"];
    small_partitions: "readahead=32,compressed=0", "cache.partition=2M",
        zero [], some ["swap_cache_lock"];
    a_lock_a_device: "compressed=0", "slot.lock=device,slot.cache=off,slot.cpu_cluster=off",
        zero ["cluster_lock", "slot_cache_alloc", "slot_cache_free"], some ["slot_lock", "pswpin"];
    a_lock_a_cluster: "compressed=0", "slot.lock=cluster,slot.cache=off,slot.cpu_cluster=off",
        zero ["slot_cache_alloc", "slot_cache_free"], some ["cluster_lock", "pswpin"];
    slot_caches: "compressed=0", "slot.cache=64,slot.cpu_cluster=on",
        zero [], some ["slot_cache_free", "slot_cache_return"];
    a_page_a_hold: "compressed=0", "swap.batch=off", zero [], some ["swap_cache_lock", "pswpin"];
    a_page_a_hold_without_caches: "compressed=0",
        "swap.batch=off,slot.lock=device,slot.cache=off,slot.cpu_cluster=off",
        zero ["cluster_lock"], some ["slot_lock", "pswpin"];
    no_vector_drop: "out=drop", "vector_drop=off", zero ["out_moved"], some ["out_dropped"];
    a_small_window: "window=4G", "", zero [], some [];
    each_slot_forgotten_under_the_lock: "", "zswap.invalidate=always",
        zero [], some ["zswap_erased", "zswap_lock", "zswpin"];
    slots_of_ranges_with_entries_forgotten_under_the_lock: "", "zswap.invalidate=empty",
        zero [], some ["zswap_erased", "zswpin"];
    no_lock_where_no_entry_is: "compressed=0", "zswap.invalidate=empty",
        zero ["zswap_lock", "zswap_erased"], some ["pswpin"];
    compressed_copies_kept: "compressed=90", "zswap.keep=on,clean=off",
        zero [], some ["clean_dropped", "zswpin"];
    no_compressed_copies_kept: "", "zswap.keep=off,clean=off",
        zero ["clean_dropped", "clean_written"], some ["zswpin"];
    raw_pages_kept: "zswap.incompressible=keep,compressed=20", "",
        zero [], some ["zswpwb", "zswpin"];
    no_same_filled_pages: "", "same_filled=off",
        zero ["same_filled_out"], some ["zswpout", "zswpin"];
    packed_by_zstd: "zswap.codec=zstd", "", zero [], some ["zswpout", "zswpin"];
    not_packed: "zswap.codec=none,compressed=20", "", zero [], some ["zswpwb", "zswpin"];
    cold_pages_packed_again: "zswap.recompress=zstd:1,compressed=20", "",
        zero [], some ["zswap_recompressed", "zswpin"];
    a_tier_that_is_always_full: "compressed=3", "", zero [], some ["zswpwb", "zswpin", "pswpin"];
}

#[test]
fn a_kernel_that_cannot_move_pages() {
    let variables = [("OVERSPILL_SIMULATE", "no-move")];
    let Some(report) = mixed("no-move", "", &variables) else { return };
    assert_eq!((report.total("out_moved"), report.total("in_moved")), (0, 0));
}

#[test]
fn a_kernel_without_io_uring() {
    let variables = [("OVERSPILL_SIMULATE", "no-uring")];
    let Some(report) = mixed("no-uring", "compressed=0", &variables) else { return };
    assert!(report.total("pswpout") > 0 && report.total("pswpin") > 0);
}

/// Where the system promises only memory that it has, tables are in proportion to the budget: it
/// would refuse the second job otherwise.
#[test]
fn what_is_committed_follows_the_budget() {
    let Some(overspill) = overspill(&SCRATCH) else { return };
    let room = SCRATCH.room("committed");
    let program = SCRATCH.program("committed.c");
    for (memory, most) in [("64M", "512"), ("512M", "2048")] {
        let mut command = Command::new(overspill);
        clean(&mut command).args(["run", "--memory", memory, "--swap"]).arg(&room.path);
        command.arg("--").arg(&program).arg(most).env("OVERSPILL_BASELINES", "commit=strict");
        let outcome = run(&mut command, TIME_LIMIT);
        assert_eq!(outcome.stdout, format!("no more than {most} MiB: yes\n"), "{outcome:?}");
    }
}
