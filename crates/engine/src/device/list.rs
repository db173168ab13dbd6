//! The swap devices of a job: a list that each of its processes keeps to.
//!
//! A list that takes another's place has a number of its own, which is in the job's table once the
//! list is in its file. A process that finds a number that it does not know reads the file, opens
//! what it has not, and takes out of use what is on the list no more. So a process that begins
//! later has the same devices, and one that was stopped gets there when it goes on.

use crate::device::spec::SwapSpec;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs};

/// First item: what it is, and the version of its form. The number of the list follows. An item
/// ends with a zero byte, which is in no path.
const HEAD: &str = "overspill-swaps-1";

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

    /// The file, beside that of the job's table.
    pub fn path(job_file: &Path) -> PathBuf {
        job_file.with_file_name("swaps")
    }

    /// Puts the list into a file, in one go: who reads it meanwhile reads the last one.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let next = path.with_extension("next");
        fs::write(&next, self.to_string())?;
        fs::rename(next, path)
    }

    /// Reads the list from a file.
    ///
    /// # Errors
    /// Those of the file system; `InvalidData` for what is no list.
    pub fn read(path: &Path) -> io::Result<JobSwaps> {
        let text = fs::read_to_string(path)?;
        text.parse()
            .map_err(|NoList| Error::new(ErrorKind::InvalidData, "it is no list of swap devices"))
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
        assert!(JobSwaps::read(&path).is_err());
        let specs: Vec<SwapSpec> = ["/a\n b:1G,prio=3,label=x", "ram:4M,seed=7", "/c,discard=once"]
            .map(|text| text.parse().unwrap())
            .into();
        let mut list = JobSwaps::first(&specs);
        list.devices.remove(1);
        list.number = 7;
        list.write(&path).unwrap();
        assert_eq!(JobSwaps::read(&path).unwrap(), list);
        assert_eq!(list.devices.iter().map(|device| device.id).collect::<Vec<_>>(), [0, 2]);
        JobSwaps::default().write(&path).unwrap();
        assert_eq!(JobSwaps::read(&path).unwrap(), JobSwaps::default());
        let items = [
            "",
            "overspill-swaps-1",
            "overspill-swaps-1 x\0",
            "overspill-swaps-2 1\0",
            "overspill-swaps-1 1\x000\0",
        ];
        for broken in items.into_iter().chain(["overspill-swaps-1 1\x000 /a"]) {
            fs::write(&path, broken).unwrap();
            assert!(JobSwaps::read(&path).is_err(), "{broken}");
        }
        fs::remove_file(path).unwrap();
    }
}
