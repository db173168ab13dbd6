//! Many threads that find no frame, in signal delivery: however they come and go, nobody hangs, no
//! page is lost, and nobody reclaims in the end.

mod common;

use overspill::Pool;
use overspill::config::{Config, Delivery};
use overspill::stats::Snapshot;
use overspill::units::Bytes;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;
const MEMORY: u64 = 8 << 20;
/// Threads at a time.
const THREADS: usize = 48;
/// Longest that anything here may take: what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ x >> 7
}

/// A pool; `None`, loudly, where the kernel gives this user no userfaultfd.
fn pool(settings: &str) -> Option<Pool> {
    let mut config =
        Config { memory: Bytes(MEMORY), delivery: Delivery::Signal, ..Config::default() };
    config.swap = vec!["ram:256M,latency=20us".parse().unwrap()];
    config.window = Some(Bytes(1 << 30));
    common::pool(config, settings)
}

/// Ends the process, loudly, when it takes too long: a thread that hangs can be neither joined nor
/// killed.
fn watch() -> impl Drop {
    struct Watch(std::sync::mpsc::Sender<()>);
    impl Drop for Watch {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if receive.recv_timeout(LIMIT).is_err() {
            eprintln!("it hangs");
            std::process::abort();
        }
    });
    Watch(send)
}

/// One thread's life: touches so many of its pages at random, each of which must have what was
/// written to it last.
fn live(words: &mut [u64], versions: &mut [u64], seed: u64, touches: usize) {
    let mut rng = seed;
    for _ in 0..touches {
        rng = mix(rng);
        let page = (rng >> 20) as usize % versions.len();
        let place = &mut words[page * WORDS..][..WORDS];
        assert_eq!(place[7], versions[page], "page {page}");
        versions[page] = rng;
        // All of it: a page of zeros and a number would be compressed.
        place.iter_mut().enumerate().for_each(|(i, word)| *word = mix(rng ^ i as u64));
        place[7] = rng;
    }
}

/// Threads that come and go until `until`, four times the memory between them; the statistics at
/// the end.
fn storm(settings: &str, until: Instant) -> Option<Snapshot> {
    let pool = pool(settings)?;
    let mut region = pool.map(4 * MEMORY as usize).unwrap();
    let share = region.as_slice::<u64>().len() / THREADS / WORDS * WORDS;
    let lives = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (t, words) in
            region.as_mut_slice::<u64>().chunks_exact_mut(share).take(THREADS).enumerate()
        {
            let lives = &lives;
            scope.spawn(move || {
                let mut versions = vec![0; share / WORDS];
                let mut seed = mix(t as u64 + 1);
                while Instant::now() < until {
                    seed = mix(seed);
                    let (words, versions) = (&mut *words, &mut versions);
                    // Each ends at another moment of what the others do.
                    std::thread::scope(|scope| {
                        scope.spawn(move || live(words, versions, seed, (seed >> 8) as usize % 60));
                    });
                    lives.fetch_add(1, Relaxed);
                }
            });
        }
    });
    let stats = pool.stats();
    assert!(lives.into_inner() > 2 * THREADS, "threads came and went");
    Some(stats)
}

#[test]
fn threads_that_end_at_random_leave_nobody_reclaiming() {
    let _watch = watch();
    for (settings, turns) in [
        ("background=off,reclaim.max=1", 1),
        ("background=off,reclaim.max=3,reclaim.recheck=timed", 3),
        ("background=off,reclaim.max=off", 2048),
        ("reclaim.max=2", 2),
    ] {
        let Some(stats) = storm(settings, Instant::now() + Duration::from_secs(2)) else { return };
        let get = |name: &str| stats.counters[name];
        assert_eq!((get("nr_reclaimers"), get("fault_errors")), (0, 0), "{settings}");
        assert!(get("reclaimers_max") <= turns, "{settings}: {} at once", get("reclaimers_max"));
        assert!(get("charged_peak_bytes") <= MEMORY, "{settings}");
        if settings.contains("background=off") {
            assert!(
                get("allocstall") > 0 && get("direct_reclaim_ns_max") > 0 && get("refaults_1s") > 0,
                "{settings}"
            );
            // More than one at once only where more than one may; and then nobody waits.
            let waited = get("pgscan_direct_throttle") > 0;
            assert_eq!(waited, turns < 2048, "{settings}: {stats:?}");
            assert_eq!(waited, get("throttle_wait_ns_max") > 0, "{settings}");
            assert!(get("throttle_wait_ns") >= get("throttle_wait_ns_max"), "{settings}");
        }
    }
}

const ROLE: &str = "OVERSPILL_TEST_ROLE";
const SIGKILL: i32 = 9;

/// Runs a test of this file again as a process of its own, with a role.
fn again(name: &str, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// A process that ends, or is killed, in the middle of a storm is gone at once, whatever its
/// threads are at.
#[test]
fn processes_that_end_at_random_are_gone() {
    const NAME: &str = "processes_that_end_at_random_are_gone";
    let _watch = watch();
    if let Ok(role) = std::env::var(ROLE) {
        if let Some(ms) = role.strip_prefix("exit ") {
            let time = Duration::from_millis(ms.parse().unwrap());
            std::thread::spawn(move || {
                std::thread::sleep(time);
                std::process::exit(7);
            });
        }
        storm("background=off,reclaim.max=2", Instant::now() + LIMIT);
        return;
    }
    if pool("").is_none() {
        return;
    }
    let mut rng = 5;
    for _ in 0..4 {
        rng = mix(rng);
        let ms = 100 + rng % 700;
        let mut killed = again(NAME, "go on");
        let exits = again(NAME, &format!("exit {ms}"));
        std::thread::sleep(Duration::from_millis(ms));
        killed.kill().unwrap();
        assert_eq!(killed.wait().unwrap().signal(), Some(SIGKILL));
        let output = exits.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What does not fit is told once, and the process is killed or gets SIGBUS, in both deliveries.
#[test]
fn a_process_without_room_ends_as_the_setting_says() {
    const NAME: &str = "a_process_without_room_ends_as_the_setting_says";
    const SIGBUS: i32 = 7;
    let _watch = watch();
    if let Ok(role) = std::env::var(ROLE) {
        let (delivery, oom) = role.split_once(' ').unwrap();
        let delivery = if delivery == "Thread" { Delivery::Thread } else { Delivery::Signal };
        let mut config = Config {
            memory: Bytes(MEMORY),
            delivery,
            window: Some(Bytes(1 << 30)),
            ..Config::default()
        };
        config.apply_settings(&format!("oom={oom},oom.wait=500ms")).unwrap();
        let pool = Pool::new(config).unwrap();
        let mut region = pool.map(4 * MEMORY as usize).unwrap();
        let share = region.as_slice::<u64>().len() / 4;
        std::thread::scope(|scope| {
            for (t, words) in region.as_mut_slice::<u64>().chunks_exact_mut(share).enumerate() {
                scope.spawn(move || {
                    words
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, word)| *word = mix((t * share + i) as u64));
                });
            }
        });
        return;
    }
    if pool("").is_none() {
        return;
    }
    for delivery in ["Thread", "Signal"] {
        for (oom, signal, said) in [
            ("kill", SIGKILL, "is killed (oom=kill). Of the budget of 8 MiB it had"),
            ("sigbus", SIGBUS, "gets SIGBUS"),
        ] {
            let output = again(NAME, &format!("{delivery} {oom}")).wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> =
                text.lines().filter(|line| line.starts_with("overspill: ")).collect();
            let [line] = lines[..] else { panic!("{delivery} {oom}: {text}") };
            assert!(line.starts_with("overspill: out of room: "), "{delivery} {oom}: {text}");
            assert!(line.contains(said), "{delivery} {oom}: {text}");
            let remedy = "Give the pool a larger budget, or more swap";
            assert!(line.ends_with(remedy), "a pool has no options: {text}");
            assert_eq!(output.status.signal(), Some(signal), "{delivery} {oom}: {text}");
        }
    }
}

/// Watermarks that do not rise are refused, and those that do are kept: so much stays free.
#[test]
fn watermarks_are_where_they_are_set() {
    let mut config =
        Config { memory: Bytes(MEMORY), delivery: Delivery::Signal, ..Config::default() };
    config.apply_settings("watermark=2%/1%/auto").unwrap();
    let error = Pool::new(config).unwrap_err().to_string();
    assert!(error.starts_with("watermark=2%/1%/auto does not rise"), "{error}");
    let Some(pool) = pool("watermark=25%/30%/35%,background=off") else {
        return;
    };
    let mut region = pool.map(2 * MEMORY as usize).unwrap();
    region.as_mut_slice::<u64>().iter_mut().enumerate().for_each(|(i, word)| *word = mix(i as u64));
    let stats = pool.stats();
    // Pages of the program never take the reserve; what reclaim works with may, and is counted as
    // well.
    let resident = stats.counters["nr_resident"] * PAGE as u64;
    assert!(resident <= MEMORY * 3 / 4, "{resident} bytes are resident");
    assert!(stats.counters["allocstall"] > 0);
}
