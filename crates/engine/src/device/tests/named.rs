//! Headers, figures and discarding.

use super::*;
use crate::stats::{DeviceKind, DeviceSnapshot};
use crate::units::Uuid;
use std::os::unix::fs::OpenOptionsExt;

/// The only device of those that are open.
fn figures(devices: &SwapDevices) -> DeviceSnapshot {
    let [figures] = &devices.stats.snapshot().devices[..] else { panic!("there is one device") };
    figures.clone()
}

#[test]
fn a_header_keeps_its_uuid_and_its_label_until_another_is_given() {
    let dir = Dir::new("header");
    let path = dir.file("swap");
    let open = |options: &str| {
        let spec: SwapSpec = format!("{}{options}", path.display()).parse().unwrap();
        SwapDevices::open(
            &JobSwaps::first(&[spec]),
            DeviceSettings::default(),
            no_tables(),
            Stats::anonymous().unwrap(),
        )
    };
    // Several at once see the same.
    let uuids: BTreeSet<Uuid> = std::thread::scope(|scope| {
        let openers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| figures(&open(":4M").unwrap()).uuid.unwrap())).collect();
        openers.into_iter().map(|opener| opener.join().unwrap()).collect()
    });
    assert_eq!(uuids.len(), 1);
    let label = |options| {
        let figures = figures(&open(options).unwrap());
        assert_eq!(figures.uuid, uuids.first().copied());
        figures.label
    };
    assert_eq!(
        [label(""), label(",label=fast"), label(""), label(",label=slow"), label("")],
        ["", "fast", "fast", "slow", "slow"]
    );
    let header = std::fs::read(&path).unwrap()[..4096].to_vec();
    let text = String::from_utf8(header.clone()).unwrap();
    assert!(text.contains("\nlabel=slow\nsize=4194304\nchecksum="), "{text}");
    // A header that somebody has changed is left as it is.
    let mut changed = header;
    changed[40] ^= 1;
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&changed, 0).unwrap();
    let error = open("").unwrap_err();
    assert!(matches!(error, SwapError::BadHeader { .. }), "{error:?}");
    assert!(error.to_string().contains("cannot be trusted (its checksum is wrong)"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap()[..4096], changed);
}

#[test]
fn a_kernel_swap_area_keeps_its_header_and_its_bad_pages_are_never_used() {
    let dir = Dir::new("kernel");
    let path = dir.file("kernel");
    let bad = [1u32, 2, 300, 511, 512, 999];
    let mut header = [0; 4096];
    for (at, word) in [(1024, 1), (1028, 999), (1032, bad.len() as u32)] {
        header[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
    }
    bad.iter()
        .enumerate()
        .for_each(|(i, page)| header[1536 + 4 * i..][..4].copy_from_slice(&page.to_le_bytes()));
    header[1036..1052].fill(9);
    header[1052..1056].copy_from_slice(b"room");
    header[4086..].copy_from_slice(b"SWAPSPACE2");
    let mut options = std::fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(&header, 0).unwrap();
    let devices = open(&path, None);
    // The area is smaller than the file.
    assert_eq!(devices.capacity_pages(), 1000 - 1 - 6);
    let runs = alloc_all(&devices);
    let slots: BTreeSet<u64> =
        runs.iter().flat_map(|run| run.slots()).map(SlotId::offset).collect();
    assert_eq!(slots, (1..1000).filter(|page| !bad.contains(&(*page as u32))).collect());
    let figures = figures(&devices);
    assert_eq!(
        (figures.label.as_str(), figures.uuid, figures.bad_slots),
        ("room", Some(Uuid([9; 16])), 6)
    );
    runs.into_iter().for_each(|run| write(&devices, run, 1).unwrap());
    assert_eq!(std::fs::read(&path).unwrap()[..4096], header);
    // One that cannot be right is refused.
    file.write_all_at(&[2], 1024).unwrap();
    assert!(matches!(refusal(&path, None), SwapError::BadHeader { .. }));
}

#[test]
fn every_device_has_figures() {
    let dir = Dir::new("figures");
    let specs =
        format!("{}:8M,label=one,{}:4M,prio=3,ram:2M", dir.0.display(), dir.file("swap").display());
    let SwapList(specs) = specs.parse().unwrap();
    let stats = Stats::anonymous().unwrap();
    let devices =
        SwapDevices::open(&JobSwaps::first(&specs), DeviceSettings::default(), no_tables(), stats)
            .unwrap();
    let runs = alloc_all(&devices);
    runs.iter().for_each(|run| write(&devices, *run, 1).unwrap());
    assert!(reads_back(&devices, runs[0], 1));
    let all = stats.snapshot().devices;
    let names = |device: &DeviceSnapshot| {
        (device.kind, device.label.clone(), device.priority, device.size_bytes >> 20)
    };
    assert_eq!(
        all.iter().map(names).collect::<Vec<_>>(),
        [
            (DeviceKind::Directory, "one".to_owned(), Some(-2), 8),
            (DeviceKind::File, String::new(), Some(3), 4),
            (DeviceKind::Ram, String::new(), Some(-3), 2)
        ]
    );
    assert!(
        all.iter()
            .all(|device| device.used_bytes == device.pages_written << 12 && device.writes > 0)
    );
    assert_eq!(
        all.iter().map(|device| device.pages_written).sum::<u64>(),
        stats.get(Counter::PswpOut)
    );
    assert_eq!((all[1].pages_read, all[1].reads, all[0].reads), (runs[0].len as u64, 1, 0));
    assert_eq!((all[0].path.as_str(), all[2].path.as_str()), (dir.0.to_str().unwrap(), "ram"));
    runs.iter().for_each(|run| devices.free_run(*run));
    devices.publish();
    assert!(stats.snapshot().devices.iter().all(|device| device.used_bytes == 0));
    // A child has what it inherited, and its own; what it has freed is gone.
    let run = devices.alloc_run(8).unwrap();
    let child = fork(&devices, &specs, true).0;
    let inherited = child.stats.snapshot().devices;
    let priorities: Vec<_> =
        inherited.iter().map(|device| (device.kind, device.priority)).collect();
    assert_eq!(
        priorities,
        [
            (DeviceKind::Directory, Some(-2)),
            (DeviceKind::File, None),
            (DeviceKind::File, Some(3)),
            (DeviceKind::Ram, Some(-3))
        ]
    );
    child.free_run(run);
    assert_eq!(child.stats.snapshot().devices.len(), 3);
}

/// Bytes of disk or memory that a file has.
fn allocated(devices: &SwapDevices) -> u64 {
    devices.table.get(0).unwrap().file().len_and_allocated_bytes().unwrap().1
}

#[test]
fn what_is_not_in_use_any_more_is_discarded() {
    let dir = Dir::new("discard");
    let named = dir.file("swap");
    for (place, least) in
        [(dir.0.display().to_string(), 2), (named.display().to_string(), 2), ("ram".to_owned(), 0)]
    {
        for (discard, gives_back) in
            [("", false), (",discard=once", false), (",discard=pages", true)]
        {
            let _ = std::fs::remove_file(&named);
            let specs = [format!("{place}:256M{discard}").parse().unwrap()];
            let devices = SwapDevices::open(
                &JobSwaps::first(&specs),
                DeviceSettings::default(),
                no_tables(),
                Stats::anonymous().unwrap(),
            )
            .unwrap();
            // Four allotments of 4 MiB.
            let runs: Vec<SlotRun> = (0..15).map(|_| devices.alloc_run(RUN_MAX).unwrap()).collect();
            runs.iter().for_each(|run| write(&devices, *run, 1).unwrap());
            assert!(allocated(&devices) >= 14 << 20, "{place}{discard}: {}", allocated(&devices));
            runs[1..].iter().for_each(|run| devices.free_run(*run));
            devices.discard_idle();
            let left = allocated(&devices) >> 20;
            // Kept: the allotment in use, one with the current cluster, and one for the next pages.
            assert_eq!(left <= 12, gives_back, "{place}{discard}: {left} MiB");
            assert!(left >= least);
            // Nothing in use is harmed, and what was given up is used again.
            assert!(reads_back(&devices, runs[0], 1));
            let capacity = devices.capacity_pages();
            let again: Vec<SlotRun> =
                (0..12).map(|_| devices.alloc_run(RUN_MAX).unwrap()).collect();
            again.iter().for_each(|run| write(&devices, *run, 2).unwrap());
            assert!(
                again.iter().all(|run| reads_back(&devices, *run, 2))
                    && reads_back(&devices, runs[0], 1)
            );
            assert_eq!(devices.capacity_pages(), capacity);
        }
    }
}

#[test]
fn a_part_of_a_file_is_discarded_before_it_is_first_used() {
    let dir = Dir::new("discard-once");
    let path = dir.file("swap");
    let open = |discard: &str| {
        let spec = format!("{}:64M{discard}", path.display()).parse().unwrap();
        SwapDevices::open(
            &JobSwaps::first(&[spec]),
            DeviceSettings::default(),
            no_tables(),
            Stats::anonymous().unwrap(),
        )
        .unwrap()
    };
    let first = open("");
    alloc_all(&first).into_iter().for_each(|run| write(&first, run, 1).unwrap());
    drop(first);
    let old = |place: usize| {
        std::fs::read(&path).unwrap()[place..place + 4096].iter().any(|byte| *byte != 0)
    };
    assert!(old(4096) && old(32 << 20));
    // With the first run an allotment of a MiB or more is acquired and discarded; the header and
    // the rest stay.
    let second = open(",discard=once");
    let run = second.alloc_run(1).unwrap();
    assert!(!old(run.first.offset() as usize * PAGE_SIZE) && old(32 << 20) && old(0));
    let third = open(",discard=once");
    assert_eq!(figures(&third).uuid, figures(&second).uuid);
}

#[test]
fn a_device_that_cannot_discard_goes_on_without() {
    let dir = Dir::new("no-discard");
    let stats = Stats::anonymous().unwrap();
    let faults = Arc::new(FailingDisk::none(u64::MAX, Errno::IO));
    let ours = faults.clone();
    let make_io: MakeIo = Box::new(move |file, queue| {
        Box::new(Faulty { disk: Direct { file, queue }, faults: ours.clone() })
    });
    let spec = format!("{}:256M,discard=pages", dir.file("swap").display()).parse().unwrap();
    faults.no_discard.store(true, Relaxed);
    let devices = SwapDevices::open_with(
        &JobSwaps::first(&[spec]),
        DeviceSettings::default(),
        no_tables(),
        stats,
        make_io,
    )
    .unwrap();
    for generation in 0..3 {
        let runs = alloc_all(&devices);
        assert_eq!(pages(&runs), (256 << 8) - 1);
        write(&devices, runs[9], generation).unwrap();
        assert!(reads_back(&devices, runs[9], generation));
        runs.into_iter().for_each(|run| devices.free_run(run));
        devices.discard_idle();
    }
    assert_eq!(faults.discards.load(Relaxed), 1, "it is asked once");
}

#[test]
fn a_named_file_is_made_extended_and_used_again_and_keeps_its_header() {
    let dir = Dir::new("named");
    let path = dir.file("swap");
    assert_eq!(open(&path, 2 << 20).capacity_pages(), 511);
    assert_eq!(open(&path, 4 << 20).capacity_pages(), 1023);
    let devices = open(&path, None);
    assert_eq!(devices.capacity_pages(), 1023);
    alloc_all(&devices).into_iter().for_each(|run| write(&devices, run, 1).unwrap());
    assert!(std::fs::read(&path).unwrap().starts_with(b"overspill swap device"));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
}
