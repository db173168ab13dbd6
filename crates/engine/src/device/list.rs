//! The swap devices of a job: a list that each of its processes keeps to.
//!
//! A list that takes another's place has a number of its own, which is in the job's table once the
//! list is in its file. A process that finds a number that it does not know reads the file, opens
//! what it has not, and takes out of use what is on the list no more. So a process that begins
//! later has the same devices, and one that was stopped gets there when it goes on.

use crate::device::spec::SwapSpec;
use overspill_os::directory::Directory;
use rustix::fs::OFlags;
use std::fmt;
use std::fs::File;
use std::io::{self, Error, ErrorKind, Read, Write};
use std::str::FromStr;

/// First item: what it is, and the version of its form. The number of the list follows. An item
/// ends with a zero byte, which is in no path.
const HEAD: &str = "overspill-swaps-1";
/// Longest list that is read: as many devices as there may be, with the longest paths, are less.
const BYTES_MAX: u64 = 1 << 20;
/// The list's file in the directory of a run, and the next one before it takes its place.
const FILE_NAME: &str = "swaps";
const NEXT_NAME: &str = "swaps.next";

/// A swap device of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedSwap {
    /// Tells it from all that the job has had. Those that it began with are numbered from 0, in
    /// their order.
    pub id: u32,
    /// What it is.
    pub spec: SwapSpec,
}

/// The devices of a job, in the order in which they were added: [`SwapSpec::priorities`] of them
/// are their priorities.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobSwaps {
    /// Of lists for one job, none has that of another; 0 is that with which it began.
    pub number: u32,
    /// The devices.
    pub devices: Vec<ListedSwap>,
}

impl JobSwaps {
    /// That with which a job begins.
    pub fn first(specs: &[SwapSpec]) -> JobSwaps {
        let listed = |(id, spec): (u32, &SwapSpec)| ListedSwap { id, spec: spec.to_absolute() };
        JobSwaps { number: 0, devices: (0..).zip(specs).map(listed).collect() }
    }

    /// The devices, with their priorities.
    pub fn with_priorities(&self) -> impl Iterator<Item = (&ListedSwap, i32)> {
        self.devices
            .iter()
            .zip(SwapSpec::priorities(self.devices.iter().map(|listed| &listed.spec)))
    }

    /// Puts the list into the directory of a run, in one go: who reads it meanwhile reads the last
    /// one. All users of the job may read it.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, run_dir: &Directory) -> io::Result<()> {
        let mut next = File::from(run_dir.replace_file(NEXT_NAME, 0o644)?);
        next.write_all(self.to_string().as_bytes())?;
        Ok(run_dir.rename(NEXT_NAME, FILE_NAME)?)
    }

    /// Reads the list in the directory of a run.
    ///
    /// # Errors
    /// Those of the file system; `InvalidData` for what is no list.
    pub fn read(run_dir: &Directory) -> io::Result<JobSwaps> {
        let no_list = || Error::new(ErrorKind::InvalidData, "it is no list of swap devices");
        let mut text = String::new();
        let file = File::from(run_dir.open_shared(FILE_NAME, OFlags::RDONLY)?);
        file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > BYTES_MAX {
            return Err(no_list());
        }
        text.parse().map_err(|NoList| no_list())
    }

    fn parse(text: &str) -> Option<JobSwaps> {
        let mut items = text.strip_suffix('\0')?.split('\0');
        let number = items.next()?.strip_prefix(HEAD)?.strip_prefix(' ')?.parse().ok()?;
        let device = |item: &str| {
            let (id, spec) = item.split_once(' ')?;
            Some(ListedSwap { id: id.parse().ok()?, spec: spec.parse().ok()? })
        };
        Some(JobSwaps { number, devices: items.map(device).collect::<Option<_>>()? })
    }
}

/// A text is no list of swap devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoList;

impl FromStr for JobSwaps {
    type Err = NoList;

    fn from_str(text: &str) -> Result<JobSwaps, NoList> {
        JobSwaps::parse(text).ok_or(NoList)
    }
}

impl fmt::Display for JobSwaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEAD} {}\0", self.number)?;
        self.devices.iter().try_for_each(|device| write!(f, "{} {}\0", device.id, device.spec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_were_written() {
        let path = std::env::temp_dir().join(format!("overspill-swaps-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let run_dir = Directory::open(&path).unwrap();
        assert!(JobSwaps::read(&run_dir).is_err());
        let specs: Vec<SwapSpec> = ["/a\n b:1G,prio=3,label=x", "ram:4M,seed=7", "/c,discard=once"]
            .map(|text| text.parse().unwrap())
            .into();
        let mut list = JobSwaps::first(&specs);
        list.devices.remove(1);
        list.number = 7;
        list.write(&run_dir).unwrap();
        assert_eq!(JobSwaps::read(&run_dir).unwrap(), list);
        assert_eq!(list.devices.iter().map(|device| device.id).collect::<Vec<_>>(), [0, 2]);
        JobSwaps::default().write(&run_dir).unwrap();
        assert_eq!(JobSwaps::read(&run_dir).unwrap(), JobSwaps::default());
        let items = [
            "",
            "overspill-swaps-1",
            "overspill-swaps-1 x\0",
            "overspill-swaps-2 1\0",
            "overspill-swaps-1 1\x000\0",
        ];
        for broken in items.into_iter().chain(["overspill-swaps-1 1\x000 /a"]) {
            std::fs::write(path.join(FILE_NAME), broken).unwrap();
            assert!(JobSwaps::read(&run_dir).is_err(), "{broken}");
        }
        // What has no end is not read to its end.
        let endless = format!("overspill-swaps-1 1\0{}", "0 /a\0".repeat(1 << 18));
        std::fs::write(path.join(FILE_NAME), endless).unwrap();
        assert!(JobSwaps::read(&run_dir).is_err());
        std::fs::remove_dir_all(path).unwrap();
    }
}
