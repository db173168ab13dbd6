//! What comes back is what was written, or an error.

use super::*;

#[test]
fn a_page_that_is_not_what_was_written_fails_alone() {
    let dir = Dir::new("checksum");
    let path = dir.file("swap");
    let specs = [SwapSpec { crypt: Some(false), ..spec(&path, 64 << 20) }];
    let stats = Stats::anonymous().unwrap();
    let devices =
        SwapDevices::open(&JobSwaps::first(&specs), DeviceSettings::default(), no_tables(), stats)
            .unwrap();
    let run = devices.alloc_run(16).unwrap();
    write(&devices, run, 1).unwrap();
    // Somebody changes one bit of the sixth page.
    let place = (run.first.offset() + 5) * PAGE_SIZE as u64;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place + 77).unwrap();
    file.write_all_at(&[byte[0] ^ 4], place + 77).unwrap();
    for devices in [&devices, &fork(&devices, &specs, true).0] {
        let mut buffer = IoBuffer::new(16).unwrap();
        let error = devices.read(run, &mut buffer).unwrap_err();
        assert_eq!((error.failure, error.offset_bytes), (ReadFailure::Checksum, place));
        let said = error.to_string();
        assert!(
            said.contains(path.to_str().unwrap())
                && said.contains(&format!("at byte {place} is not what")),
            "{said}"
        );
        for (i, slot) in run.slots().enumerate() {
            assert_eq!(reads_back(devices, SlotRun { first: slot, len: 1 }, 1), i != 5);
        }
        assert_eq!(devices.stats.get(Counter::ReadErrors), 2, "of the run, and of the page alone");
        assert_eq!(devices.stats.get(Counter::ChecksumErrors), 4, "each read twice");
    }
    // The slot is as good as any other for its next page.
    write(&devices, run, 2).unwrap();
    assert!(reads_back(&devices, run, 2));
}

/// A device that fails at random gives back what was written, or an error where that is gone, and
/// nothing else.
#[test]
fn an_unreliable_device_never_gives_wrong_pages() {
    // Pages that rot are rare: long enough that the chance of none is nothing.
    for (crypt, faults, rots, generations) in [
        ("off", "0.2:eio+short+slow+flip", false, 400),
        ("off", "0.2:short+slow+flip+rot", true, 2000),
        ("on", "0.2:eio+short+slow+flip", false, 400),
        ("on", "0.2:short+slow+flip+rot", true, 2000),
    ] {
        let devices = ram(&format!("ram:64M,crypt={crypt},faults={faults},seed=3"));
        let mut held: Vec<(SlotRun, u64)> = Vec::new();
        let (mut wrong, mut gone) = (0, 0);
        for generation in 0..generations {
            let len = 1 + generation as usize * 7 % 24;
            if let Some(run) = devices.alloc_run(len)
                && write(&devices, run, generation).is_ok()
            {
                held.push((run, generation));
            }
            if held.len() > 30 {
                let (run, generation) = held.remove(generation as usize * 11 % 30);
                for slot in run.slots() {
                    let (mut expected, mut read) =
                        (IoBuffer::new(1).unwrap(), IoBuffer::new(1).unwrap());
                    let one = SlotRun { first: slot, len: 1 };
                    fill(&mut expected, 0, one, generation);
                    // What is there, whatever the device says.
                    let mut there = IoBuffer::new(1).unwrap();
                    let file = devices.table.get(0).unwrap();
                    file.file().read_at(&mut there, slot.offset() * PAGE_SIZE as u64).unwrap();
                    match devices.read(one, &mut read) {
                        Ok(()) => wrong += usize::from(read[..] != expected[..]),
                        // Any failure will do: a retry of rotted data may itself fail short or with
                        // EIO.
                        Err(error) => {
                            assert!(
                                !file.marks.restore(slot.offset(), &mut there),
                                "gone though the device has it: {error}"
                            );
                            gone += 1;
                        }
                    }
                }
                devices.free_run(run);
            }
        }
        assert_eq!((wrong, gone > 0), (0, rots), "{faults}: {gone} gone");
        assert_eq!(devices.stats.get(Counter::ReadErrors), gone, "{faults}");
        assert!(
            devices.stats.get(Counter::ReadRetries) > 0
                && devices.stats.get(Counter::ChecksumErrors) > 0
        );
    }
}
