//! Where a bench ran, and what of the machine it may use.

use serde::Serialize;
use std::fs;
use std::str::FromStr;

#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cpus: usize,
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// RAM of the machine in bytes.
    pub ram_bytes: u64,
}

impl Machine {
    pub fn this() -> Machine {
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            ram_bytes: meminfo("MemTotal"),
        }
    }
}

/// What the kernel calls the processors, where it says.
pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, name) =
        text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// RAM that can be had without pushing anything out, in bytes.
pub fn available_bytes() -> u64 {
    meminfo("MemAvailable")
}

/// RAM that zswap's pool takes, in bytes.
pub fn zswap_bytes() -> u64 {
    meminfo("Zswap")
}

/// Processes that run, or wait for a processor or a disk, averaged over the last minute.
pub fn load_average() -> f64 {
    entry(&fs::read_to_string("/proc/loadavg").unwrap_or_default(), "").unwrap_or(0.0)
}

fn meminfo(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // In KiB.
    entry(&text, &format!("{key}:")).map_or(0, |kib: u64| kib << 10)
}

/// The number behind a name that begins a line.
pub fn entry<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_found_by_its_whole_name() {
        let text = "MemTotalX:  1 kB\nMemTotal:       24683776 kB\nHugePages_Total:  none\n";
        let entry = |name: &str| entry::<u64>(text, name);
        assert_eq!(entry("MemTotal:"), Some(24683776));
        assert_eq!((entry("HugePages_Total:"), entry("MemFree:")), (None, None));
    }
}
