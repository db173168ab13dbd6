//! The swap device of a bench.

use overspill::config::SwapSpec;
use overspill::units::Bytes;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// What `--device` is by default.
pub const RAM: &str = "ram";
/// How the RAM device behaves unless something else is asked for: a fast NVMe disk without noise.
const RAM_BEHAVES: &str = ",latency=10us,bandwidth=4G";

/// A swap device as `--device` names it: `ram` or a path, with the engine's options of swap devices
/// after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapDevice {
    place: String,
    /// With the comma before them.
    options: String,
}

impl SwapDevice {
    /// What is at a path.
    pub fn at(path: &Path) -> SwapDevice {
        SwapDevice { place: path.display().to_string(), options: String::new() }
    }

    /// Whether it is the engine's RAM device.
    pub fn is_ram(&self) -> bool {
        self.place == RAM
    }

    /// What a report says of it, of which the engine was told `spec`.
    pub fn told(&self, spec: &str) -> String {
        if self.is_ram() { spec.to_owned() } else { self.to_string() }
    }

    /// What the engine is told, for a device of which `size` is used at most.
    pub fn spec(&self, size: Bytes) -> String {
        let SwapDevice { place, options } = self;
        let options = if self.is_ram() && options.is_empty() { RAM_BEHAVES } else { options };
        format!("{place}:{}{options}", size.0)
    }
}

impl FromStr for SwapDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<SwapDevice, String> {
        let (place, options) = text.split_at(text.find(',').unwrap_or(text.len()));
        if place.is_empty() {
            return Err(format!("'{text}' names no device: write ram, or a path"));
        }
        let device = SwapDevice { place: place.to_owned(), options: options.to_owned() };
        device.spec(Bytes(1 << 30)).parse::<SwapSpec>().map_err(|error| error.to_string())?;
        Ok(device)
    }
}

impl fmt::Display for SwapDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.place, self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_becomes_what_the_engine_reads() {
        let spec = |text: &str| text.parse::<SwapDevice>().unwrap().spec(Bytes(4096));
        assert_eq!(spec("ram"), "ram:4096,latency=10us,bandwidth=4G");
        assert_eq!(spec("ram,latency=1ms"), "ram:4096,latency=1ms");
        assert_eq!(spec("/a:b/c"), "/a:b/c:4096");
        assert_eq!(SwapDevice::at(Path::new("/a")), "/a".parse().unwrap());
        for bad in ["ram,latency=soon", "/a,nope=1", ""] {
            assert!(bad.parse::<SwapDevice>().is_err(), "{bad}");
        }
        assert_eq!("ram,latency=1ms".parse::<SwapDevice>().unwrap().to_string(), "ram,latency=1ms");
        let told = |text: &str| text.parse::<SwapDevice>().unwrap().told("spec");
        assert_eq!((told("ram").as_str(), told("/a,prio=1").as_str()), ("spec", "/a,prio=1"));
    }
}
