use super::*;
use overspill::stats::{DeviceFigure, DeviceIdentity, DeviceKind, Stats, SwapsOutcome};
use overspill::units::Uuid;
use std::path::{Path, PathBuf};

const DONE: SwapsOutcome = SwapsOutcome { not_opened: false, no_room: false, lost_pages: 0 };
const NO_ROOM: SwapsOutcome = SwapsOutcome { no_room: true, ..DONE };
const NOT_OPENED: SwapsOutcome = SwapsOutcome { not_opened: true, ..DONE };

/// A job with devices, and processes that say what the test has them say.
struct TestJob {
    swaps: Swaps,
    processes: Vec<(u32, Stats)>,
    dir: PathBuf,
}

impl TestJob {
    /// With `devices` directories "a", "b" and so on, and so many processes that have them open.
    fn new(name: &str, devices: usize, processes: u32) -> TestJob {
        // In the directory of the build, which is on a disk.
        let dir =
            std::env::current_exe().unwrap().parent().unwrap().join(format!("swaps-test-{name}"));
        for sub in ["a", "b", "c"] {
            std::fs::create_dir_all(dir.join(sub)).unwrap();
        }
        let dir = dir.canonicalize().unwrap();
        let specs: Vec<SwapSpec> =
            ["a", "b"][..devices].iter().map(|sub| SwapSpec::new(dir.join(sub))).collect();
        let run_dir = Directory::open(dir.as_path()).unwrap();
        let file = run_dir.replace_file("job", 0o600).unwrap();
        let table = JobTable::create(std::os::fd::AsFd::as_fd(&file)).unwrap();
        let swaps = Swaps::new(&specs, table, run_dir);
        let processes = (1..=processes).map(|pid| (pid, Stats::anonymous().unwrap())).collect();
        let job = TestJob { swaps, processes, dir };
        job.processes.iter().for_each(|(_, stats)| job.open(stats));
        job
    }

    /// Gives a process the devices that are on the list, and no others.
    fn open(&self, stats: &Stats) {
        (0..8).for_each(|index| stats.device(index).clear());
        for (index, (device, priority)) in self.swaps.list.with_priorities().enumerate() {
            stats.device(index).describe(DeviceIdentity {
                path: &device.spec.path,
                kind: if device.spec.ram.is_some() {
                    DeviceKind::Ram
                } else {
                    DeviceKind::Directory
                },
                label: device.spec.label.as_ref().map_or("", |label| label.as_str()),
                uuid: None,
                priority: Some(priority),
                pages: 256,
                id: device.id,
            });
        }
    }

    /// Has processes be done with the list as it is, and have its devices open.
    fn done(&self, processes: &[usize], outcome: SwapsOutcome) {
        for at in processes {
            let stats = &self.processes[*at].1;
            self.open(stats);
            stats.set_swaps_left(0);
            stats.set_swaps_done(self.swaps.list.number, outcome);
        }
    }

    /// The same, but they keep what they have.
    fn stuck(&self, process: usize, outcome: SwapsOutcome) {
        self.processes[process].1.set_swaps_done(self.swaps.list.number, outcome);
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Swaps, &Processes<'_>) -> T) -> T {
        let snapshots: Vec<_> =
            self.processes.iter().map(|(pid, stats)| (*pid, stats.snapshot())).collect();
        let processes = Processes { snapshots: &snapshots, is_managed: &|_| true };
        self.swaps.follow(&processes);
        call(&mut self.swaps, &processes)
    }

    fn remove(&mut self, name: &str) -> Result<u32, String> {
        let path = self.dir.join(name).to_str().unwrap().to_owned();
        self.with(|swaps, processes| {
            swaps.remove(&SwapName::Any { text: Some(name.to_owned()), path }, processes)
        })
    }

    fn add(&mut self, text: &str) -> Result<u32, String> {
        let text = text.replace('@', self.dir.to_str().unwrap());
        self.with(|swaps, _| swaps.add(&text))
    }

    fn progress(&mut self, change: u32) -> SwapChange {
        self.with(|swaps, processes| swaps.progress(change, processes).unwrap())
    }

    /// Outcome, whether it is over, and how many processes are done.
    fn state(&mut self, change: u32) -> (Option<SwapOutcome>, bool, u64) {
        let now = self.progress(change);
        (now.outcome, now.over, now.done)
    }

    fn cancel(&mut self, change: u32) {
        self.with(|swaps, _| swaps.cancel(change)).unwrap();
    }

    /// The devices of the list as it is in the file: number and last part of the path.
    fn listed(&self) -> String {
        let list = JobSwaps::read(&Directory::open(self.dir.as_path()).unwrap()).unwrap();
        assert_eq!((list.number, &list), (self.swaps.table.swaps(), &self.swaps.list));
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let names =
            list.devices.iter().map(|device| format!("{}{}", name(&device.spec.path), device.id));
        names.collect::<Vec<_>>().join(" ")
    }
}

impl Drop for TestJob {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

use SwapOutcome::*;

#[test]
fn a_device_is_out_of_use_when_every_process_says_so() {
    let mut job = TestJob::new("off", 2, 2);
    // It has lost some with another device before.
    job.done(&[1], SwapsOutcome { lost_pages: 5, ..DONE });
    let change = job.remove("a").unwrap();
    assert_eq!(job.listed(), "b1");
    job.processes[0].1.set_swaps_left(100);
    job.processes[0].1.device(0).set(DeviceFigure::Used, 100);
    let now = job.progress(change);
    assert_eq!(
        (now.processes, now.done, now.silent, now.left_pages, now.over),
        (2, 0, 1, 100, false)
    );
    assert_eq!(job.remove("a"), Ok(change), "who asks again waits for the same");
    job.done(&[0], SwapsOutcome { lost_pages: 3, ..DONE });
    assert_eq!(job.state(change), (None, false, 1));
    // What it has lost is told, also when it has ended.
    job.processes.remove(0);
    job.done(&[0], SwapsOutcome { lost_pages: 8, ..DONE });
    assert_eq!(job.state(change), (Some(Done), true, 1));
    assert_eq!(job.progress(change).lost_pages, 6);
    assert!(job.remove("a").unwrap_err().contains("it has '"));
    // Its directory may be used again, as another device.
    let change = job.add("@/a").unwrap();
    assert_eq!(job.listed(), "b1 a2");
    job.done(&[0], DONE);
    assert_eq!(job.state(change), (Some(Done), true, 1));
}

#[test]
fn without_room_it_is_put_back_where_it_was() {
    let mut job = TestJob::new("no-room", 2, 3);
    let change = job.remove("a").unwrap();
    job.done(&[0], DONE);
    job.stuck(1, NO_ROOM);
    assert_eq!(job.state(change), (Some(NoRoom), false, 0));
    assert_eq!(job.listed(), "a0 b1");
    job.done(&[0, 1], DONE);
    assert_eq!(job.state(change), (Some(NoRoom), false, 2));
    // One cannot open it again.
    let stats = &job.processes[2].1;
    (0..8).for_each(|index| stats.device(index).clear());
    job.stuck(2, NOT_OPENED);
    assert_eq!(job.state(change), (Some(NoRoom), true, 3));
    assert_eq!(job.progress(change).not_opened, 1);
}

#[test]
fn what_is_called_off_is_over_when_all_is_as_before() {
    let mut job = TestJob::new("cancel", 2, 2);
    let change = job.remove("b").unwrap();
    job.processes[0].1.set_swaps_left(7);
    job.done(&[1], DONE);
    job.cancel(change);
    assert_eq!(job.listed(), "a0 b1");
    assert_eq!(job.state(change), (Some(Cancelled), false, 0));
    job.done(&[0], DONE);
    assert_eq!(job.state(change), (Some(Cancelled), false, 1));
    // It can be taken up again at once.
    let again = job.remove("b").unwrap();
    assert_ne!(again, change);
    job.done(&[0, 1], DONE);
    assert_eq!(
        (job.state(change), job.state(again)),
        ((Some(Cancelled), true, 2), (Some(Done), true, 2))
    );
    job.cancel(again);
    assert_eq!(job.listed(), "a0", "it is too late for that");
}

#[test]
fn two_changes_at_once_each_have_their_own_device_in_mind() {
    let mut job = TestJob::new("both", 2, 2);
    let (a, b) = (job.remove("a").unwrap(), job.remove("b").unwrap());
    assert_eq!(job.listed(), "");
    // The first process is done with both; in the second one stays, and it is not "a".
    job.done(&[0], DONE);
    let stats = &job.processes[1].1;
    stats.device(0).clear();
    job.stuck(1, NO_ROOM);
    assert_eq!(job.state(a), (Some(Done), true, 2));
    assert_eq!(job.state(b), (Some(NoRoom), false, 0));
    assert_eq!(job.listed(), "b1");
    job.done(&[0, 1], DONE);
    assert_eq!(job.state(b), (Some(NoRoom), true, 2));
}

#[test]
fn who_is_done_does_not_wait_for_anothers_device() {
    let mut job = TestJob::new("ahead", 2, 1);
    let a = job.remove("a").unwrap();
    job.processes[0].1.set_swaps_left(100);
    let b = job.remove("b").unwrap();
    assert_eq!(job.state(a), (None, false, 0), "it is still there");
    // What it has lost is known before it is gone.
    job.processes[0].1.set_swaps_outcome(SwapsOutcome { lost_pages: 2, ..DONE });
    job.processes[0].1.device(0).clear();
    assert_eq!(job.progress(a).lost_pages, 2);
    assert_eq!((job.state(a), job.state(b)), ((Some(Done), true, 1), (None, false, 0)));
    // Nor does who has opened one.
    let c = job.add("@/c").unwrap();
    assert_eq!(job.state(c), (None, false, 0));
    job.open(&job.processes[0].1);
    assert_eq!(job.state(c), (Some(Done), true, 1));
}

#[test]
fn a_device_that_no_process_can_open_is_taken_off_again() {
    let mut job = TestJob::new("refused", 1, 2);
    let change = job.add("@/b,label=x").unwrap();
    assert_eq!(job.listed(), "a0 b1");
    job.stuck(0, NOT_OPENED);
    assert_eq!(job.state(change), (None, false, 1));
    job.stuck(1, NOT_OPENED);
    assert_eq!(job.state(change), (Some(NotOpened), false, 0));
    assert_eq!(job.listed(), "a0");
    job.done(&[0, 1], DONE);
    assert_eq!(job.state(change), (Some(NotOpened), true, 2));
    // Where one process can, it stays.
    let change = job.add("@/b").unwrap();
    job.stuck(0, NOT_OPENED);
    job.done(&[1], DONE);
    assert_eq!(job.state(change), (Some(Done), true, 2));
    assert_eq!((job.listed().as_str(), job.progress(change).not_opened), ("a0 b2", 1));
}

#[test]
fn without_processes_a_change_is_over_at_once() {
    let mut job = TestJob::new("nobody", 1, 0);
    let (off, on) = (job.remove("a").unwrap(), job.add("@/b").unwrap());
    assert_eq!((job.state(off), job.state(on)), ((Some(Done), true, 0), (Some(Done), true, 0)));
    assert_eq!(job.listed(), "b1");
}

#[test]
fn changes_that_are_over_are_forgotten_by_and_by() {
    let mut job = TestJob::new("many", 0, 0);
    let first = job.add("ram:4M").unwrap();
    for _ in 0..CHANGES_KEPT {
        job.remove("ram").unwrap();
        job.add("ram:4M").unwrap();
    }
    assert!(job.with(|swaps, processes| swaps.progress(first, processes)).is_none());
    assert!(job.swaps.changes.len() <= CHANGES_KEPT + 1);
}

#[test]
fn what_cannot_be_added_is_refused_with_the_reason() {
    let mut job = TestJob::new("refusals", 1, 1);
    std::fs::write(job.dir.join("data"), "somebody's").unwrap();
    let mut refused = |text: &str, part: &str| {
        let sentence = job.add(text).unwrap_err();
        assert!(sentence.contains(part) && !sentence.contains('\n'), "'{part}' in: {sentence}");
    };
    refused("@/a", "is in use by this job already");
    refused("@/b/../a:1G", "is in use by this job already");
    refused("@/none", "name an existing directory");
    refused("@/b:4K", "at least");
    refused("@/b,colour=red", "not an option");
    refused("@/b,@/c", "more than one");
    refused("/dev/null", "neither a directory");
    refused("@/data:4M", "holds data");
    if crate::swap::check(&SwapSpec::new("/dev/shm")).is_err() {
        refused("/dev/shm", "memory itself");
    }
    assert!(!job.dir.join("swaps").exists(), "the list has not changed");
    // While it is being taken out of use it is in use.
    job.remove("a").unwrap();
    let sentence = job.add("@/a").unwrap_err();
    assert!(sentence.contains("is being taken out of use"), "{sentence}");
    for i in 0..SlotId::IN_MEMORY {
        job.add("ram:1M").unwrap_or_else(|sentence| panic!("{i}: {sentence}"));
    }
    assert!(job.add("ram:1M").unwrap_err().contains("at most 63 swap devices"));
}

#[test]
fn devices_are_found_by_path_label_and_uuid() {
    let mut job = TestJob::new("names", 2, 1);
    job.add("ram:4M,label=fast").unwrap();
    job.add("ram:4M").unwrap();
    job.done(&[0], DONE);
    let uuid = Uuid([7; 16]);
    let path = job.dir.join("b");
    job.processes[0].1.device(1).describe(DeviceIdentity {
        path: &path,
        kind: DeviceKind::File,
        label: "from header",
        uuid: Some(uuid),
        priority: Some(-3),
        pages: 256,
        id: 1,
    });
    let mut find =
        |name: SwapName| job.with(|swaps, processes| named::find(&name, &swaps.devices(processes)));
    let any = |text: &str, path: &Path| SwapName::Any {
        text: Some(text.into()),
        path: path.to_str().unwrap().into(),
    };
    let nowhere = Path::new("/no/such/place");
    assert_eq!(find(any("b", &path)), Ok(1));
    assert_eq!(find(any("x", &path.join("../b"))), Ok(1));
    assert_eq!(find(any("fast", nowhere)), Ok(2));
    assert_eq!(find(any("from header", nowhere)), Ok(1));
    assert_eq!(find(any(&uuid.to_string().to_uppercase(), nowhere)), Ok(1));
    assert_eq!(find(SwapName::Uuid(uuid.to_string())), Ok(1));
    assert_eq!(find(SwapName::Label("fast".into())), Ok(2));
    assert_eq!(find(SwapName::Id(3)), Ok(3));
    assert!(find(any("ram", nowhere)).unwrap_err().contains("is 2 swap devices"));
    assert!(
        find(SwapName::Label("slow".into()))
            .unwrap_err()
            .contains("'LABEL=slow' is no swap device of this job")
    );
    let sentence = find(any("zzz", nowhere)).unwrap_err();
    assert!(sentence.contains("'zzz' is no swap device of this job: it has '"), "{sentence}");
    assert!(sentence.contains("'ram' (fast), 'ram'"), "{sentence}");
    assert!(find(SwapName::Uuid("zzz".into())).is_err() && find(SwapName::Id(9)).is_err());
}

#[test]
fn figures_are_those_of_all_processes() {
    let mut job = TestJob::new("figures", 2, 2);
    job.add("ram:1M,prio=4").unwrap();
    job.add("ram:1M").unwrap();
    job.done(&[0, 1], DONE);
    for (n, (_, stats)) in (1..).zip(&job.processes) {
        (0..4)
            .for_each(|index| stats.device(index).set(DeviceFigure::Used, n * (index as u64 + 1)));
    }
    // One of a parent, which its child reads.
    job.processes[1].1.device(4).describe(DeviceIdentity {
        path: &job.dir.join("b"),
        kind: DeviceKind::Directory,
        label: "",
        uuid: None,
        priority: None,
        pages: 256,
        id: 1,
    });
    job.processes[1].1.device(4).set(DeviceFigure::Used, 100);
    let told = |job: &mut TestJob| -> Vec<_> {
        let devices = job.with(|swaps, processes| swaps.devices(processes));
        let of = |device: &SwapDevice| {
            (device.id, device.priority, device.used_bytes >> 12, device.size_bytes >> 20)
        };
        devices.iter().map(of).collect()
    };
    assert_eq!(told(&mut job), [(0, -2, 3, 1), (1, -3, 106, 1), (2, 4, 9, 2), (3, -4, 12, 2)]);
    // One that leaves is still there, with its last priority; those after it move up.
    job.remove("a").unwrap();
    assert_eq!(
        told(&mut job).iter().map(|told| (told.0, told.1)).collect::<Vec<_>>(),
        [(0, -2), (1, -2), (2, 4), (3, -3)]
    );
    let devices = job.with(|swaps, processes| swaps.devices(processes));
    assert!(devices[0].leaving && devices[0].kind == "directory" && devices[2].kind == "ram");
    assert_eq!(devices.iter().map(|device| device.used_bytes >> 12).sum::<u64>(), 130);
}
