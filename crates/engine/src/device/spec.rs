//! Swap devices as the user names them: `PATH[:SIZE][,KEY=VALUE...]`, or `ram:SIZE[,KEY=VALUE...]`.
//!
//! A [`SwapList`] names several: `/a:1G,prio=2,/b` is two devices, since an item of the form
//! `key=value` belongs to the path before it. Both have a textual form from which they are read
//! back as they were: in it they travel to the processes of a job, in an environment variable.

use super::model::RamModel;
use crate::base::sentence::error_is_a_sentence;
use crate::units::Bytes;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What the text of a RAM device begins with.
const RAM: &str = "ram:";
/// The keys of options, for messages.
const KEYS: &str =
    "prio, label, discard, crypt, insecure, and for RAM devices latency, bandwidth, faults, seed";

/// When parts of a device are discarded: told that what they hold is not needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Discard {
    /// Never.
    #[default]
    Off,
    /// Before a part is first used.
    Once,
    /// Also when no page is left in a part.
    Pages,
}

/// The name of a device: 1 to 16 bytes, as in the header of a kernel swap area, without commas and
/// control characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label(String);

impl Label {
    /// Longest label in bytes.
    pub const BYTES_MAX: usize = crate::units::LABEL_BYTES_MAX;

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Label {
    type Err = BadSwap;

    fn from_str(text: &str) -> Result<Label, BadSwap> {
        let fits = (1..=Label::BYTES_MAX).contains(&text.len());
        if !fits || text.contains(',') || text.contains(char::is_control) {
            return Err(BadSwap(format!(
                "'{text}' is not a label: it takes 1 to 16 bytes of text without commas"
            )));
        }
        Ok(Label(text.to_owned()))
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A swap device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapSpec {
    /// A directory (an unlinked file is made there), a file, or a block device; `ram` for a RAM
    /// device.
    pub path: PathBuf,
    /// At most this much is used; all that the path has room for by default.
    pub size: Option<Bytes>,
    /// Devices of higher priority are filled first, equal ones in turn ([`SwapSpec::priorities`]).
    pub prio: Option<u16>,
    /// A name to tell it by.
    pub label: Option<Label>,
    /// When unused parts of it are discarded.
    pub discard: Discard,
    /// Whether its pages are sealed, where that was said.
    pub crypt: Option<bool>,
    /// Whether a file or block device is used that others can read or write, or own.
    pub insecure: bool,
    /// Set for a RAM device: how it behaves.
    pub ram: Option<RamModel>,
}

impl SwapSpec {
    /// Highest priority that can be given.
    pub const PRIO_MAX: u16 = i16::MAX as u16;

    /// What is at `path`, with nothing else said about it.
    pub fn new(path: impl Into<PathBuf>) -> SwapSpec {
        SwapSpec {
            path: path.into(),
            size: None,
            prio: None,
            label: None,
            discard: Discard::Off,
            crypt: None,
            insecure: false,
            ram: None,
        }
    }

    /// Whether its pages are sealed: on everything but RAM devices, unless it was said.
    pub fn is_sealed(&self) -> bool {
        self.crypt.unwrap_or(self.ram.is_none())
    }

    /// The same, wherever the working directory is later.
    pub fn to_absolute(&self) -> SwapSpec {
        match (self.ram, std::path::absolute(&self.path)) {
            (None, Ok(path)) => SwapSpec { path, ..self.clone() },
            _ => self.clone(),
        }
    }

    /// The priorities of devices named in this order: what was given, which is not negative, and
    /// for the others -2, -3 and so on, as in Linux.
    pub fn priorities<'a>(specs: impl IntoIterator<Item = &'a SwapSpec>) -> Vec<i32> {
        let mut left = -1;
        let mut lower = || {
            left -= 1;
            left
        };
        specs.into_iter().map(|spec| spec.prio.map_or_else(&mut lower, i32::from)).collect()
    }

    /// What the first item of a text says: the path and the size.
    fn place(text: &str) -> Result<SwapSpec, BadSwap> {
        if let Some(size) = text.strip_prefix(RAM) {
            let size = size.parse().map_err(|_| {
                BadSwap(format!(
                    "a RAM device needs a size, and '{size}' is none: write ram:SIZE, \
                                 such as ram:1G"
                ))
            })?;
            return Ok(SwapSpec {
                size: Some(size),
                ram: Some(RamModel::default()),
                ..SwapSpec::new("ram")
            });
        }
        // A path may hold colons: only a last part that begins with a digit is a size.
        if let Some((path, size)) = text.rsplit_once(':')
            && !path.is_empty()
            && size.starts_with(|c: char| c.is_ascii_digit())
            && !size.contains('/')
        {
            let size =
                size.parse().map_err(|bad: crate::units::BadSize| BadSwap(bad.to_string()))?;
            return Ok(SwapSpec { size: Some(size), ..SwapSpec::new(path) });
        }
        Ok(SwapSpec::new(text))
    }

    fn apply(&mut self, key: &str, value: &str) -> Result<(), BadSwap> {
        let bad =
            |takes: &str| BadSwap(format!("'{value}' is not a value of {key}: it takes {takes}"));
        match key {
            "prio" => {
                let prio = value.parse().ok().filter(|prio| *prio <= SwapSpec::PRIO_MAX);
                self.prio = Some(prio.ok_or_else(|| bad("0 to 32767, and higher is used first"))?);
            }
            "label" => self.label = Some(value.parse()?),
            "discard" => {
                self.discard = match value {
                    "once" => Discard::Once,
                    "pages" => Discard::Pages,
                    _ => return Err(bad("once or pages")),
                }
            }
            "crypt" => {
                self.crypt = match value {
                    "on" => Some(true),
                    "off" => Some(false),
                    _ => return Err(bad("on or off")),
                }
            }
            "insecure" if self.ram.is_some() => {
                return Err(BadSwap("a RAM device cannot have insecure: leave it away".to_owned()));
            }
            "insecure" => {
                self.insecure = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(bad("on or off")),
                }
            }
            _ if RamModel::KEYS.contains(&key) => match &mut self.ram {
                Some(ram) => ram.apply(key, value).map_err(bad)?,
                None => {
                    return Err(BadSwap(format!(
                        "swap device '{}' cannot have {key}: only RAM devices (ram:SIZE) have it",
                        self.path.display()
                    )));
                }
            },
            _ => {
                return Err(BadSwap(format!(
                    "'{key}={value}' is not an option of swap devices: choose one of {KEYS}, or \
                     write a path as './{key}={value}'"
                )));
            }
        }
        Ok(())
    }
}

impl FromStr for SwapSpec {
    type Err = BadSwap;

    fn from_str(text: &str) -> Result<SwapSpec, BadSwap> {
        let SwapList(mut specs) = text.parse()?;
        match (specs.pop(), specs.is_empty()) {
            (Some(spec), true) => Ok(spec),
            (None, _) => {
                Err(BadSwap("a swap device needs a path: name a directory on a disk".to_owned()))
            }
            _ => Err(BadSwap(format!("'{text}' names more than one swap device: name one"))),
        }
    }
}

impl fmt::Display for SwapSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.size.map_or(Ok(()), |size| write!(f, ":{}", size.0))?;
        self.prio.map_or(Ok(()), |prio| write!(f, ",prio={prio}"))?;
        self.label.as_ref().map_or(Ok(()), |label| write!(f, ",label={label}"))?;
        f.write_str(match self.discard {
            Discard::Off => "",
            Discard::Once => ",discard=once",
            Discard::Pages => ",discard=pages",
        })?;
        f.write_str(match self.crypt {
            None => "",
            Some(true) => ",crypt=on",
            Some(false) => ",crypt=off",
        })?;
        f.write_str(if self.insecure { ",insecure=on" } else { "" })?;
        self.ram.map_or(Ok(()), |ram| write!(f, "{ram}"))
    }
}

/// Swap devices in the order in which they were named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SwapList(pub Vec<SwapSpec>);

impl FromStr for SwapList {
    type Err = BadSwap;

    fn from_str(text: &str) -> Result<SwapList, BadSwap> {
        let mut specs: Vec<SwapSpec> = Vec::new();
        let mut keys = Vec::new();
        for item in text.split(',').filter(|item| !item.is_empty()) {
            let Some((key, value)) = option(item) else {
                specs.push(SwapSpec::place(item)?);
                keys.clear();
                continue;
            };
            let spec = specs.last_mut().ok_or_else(|| {
                BadSwap(format!(
                    "'{item}' is an option of a swap device, and no device is named before it"
                ))
            })?;
            if keys.contains(&key) {
                return Err(BadSwap(format!(
                    "swap device '{}' is given {key} twice: give it once",
                    spec.path.display()
                )));
            }
            keys.push(key);
            spec.apply(key, value)?;
        }
        Ok(SwapList(specs))
    }
}

/// The item of a list as an option: a word and a value.
fn option(item: &str) -> Option<(&str, &str)> {
    let (key, value) = item.split_once('=')?;
    let word = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase());
    word.then_some((key, value))
}

impl fmt::Display for SwapList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, spec) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            spec.fmt(f)?;
        }
        Ok(())
    }
}

/// Why the text of a swap device was refused.
#[derive(Clone, PartialEq, Eq)]
pub struct BadSwap(String);

impl fmt::Display for BadSwap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

error_is_a_sentence!(BadSwap);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::model::{FaultKinds, FaultModel};
    use proptest::prelude::*;
    use std::time::Duration;

    fn spec(text: &str) -> SwapSpec {
        text.parse().unwrap()
    }

    #[test]
    fn a_size_follows_the_last_colon() {
        assert_eq!(
            spec("/a:b/c:2G"),
            SwapSpec { size: Some(Bytes(2 << 30)), ..SwapSpec::new("/a:b/c") }
        );
        assert_eq!(spec("/a:b/c"), SwapSpec::new("/a:b/c"));
        assert_eq!(spec("ram"), SwapSpec::new("ram"), "a file of that name");
    }

    #[test]
    fn options_belong_to_the_path_before_them() {
        let list: SwapList =
            "/a:1G,prio=5,/b,label=fast disk,discard=pages,,/c=d,discard=once".parse().unwrap();
        let [a, b, c] = &list.0[..] else { panic!("{list}") };
        assert_eq!((a.prio, a.discard, b.prio), (Some(5), Discard::Off, None));
        assert_eq!((b.label.as_ref().unwrap().as_str(), b.discard), ("fast disk", Discard::Pages));
        assert_eq!((c.path.to_str(), c.discard), (Some("/c=d"), Discard::Once));
        assert_eq!(
            list.to_string(),
            "/a:1073741824,prio=5,/b,label=fast disk,discard=pages,/c=d,discard=once",
            "one form of many"
        );
    }

    #[test]
    fn a_ram_device_has_a_model() {
        let ram = spec("ram:1G,latency=1.5ms,bandwidth=2G,faults=0.01:eio+flip,seed=7,prio=1");
        let faults =
            FaultModel { per_billion: 10_000_000, kinds: FaultKinds::EIO | FaultKinds::FLIP };
        let model = RamModel {
            latency: Duration::from_micros(1500),
            bandwidth: Some(Bytes(2 << 30)),
            faults: Some(faults),
            seed: 7,
        };
        assert_eq!((ram.ram, ram.size, ram.prio), (Some(model), Some(Bytes(1 << 30)), Some(1)));
        assert_eq!(spec("ram:1G,faults=0.5").ram.unwrap().faults.unwrap().kinds, FaultKinds::ALL);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("", "needs a path"),
            ("/a:2Q", "'2Q' is not a size"),
            ("/a,/b", "more than one"),
            ("prio=1", "no device is named before it"),
            ("/a,prio=-1", "0 to 32767"),
            ("/a,prio=32768", "0 to 32767"),
            ("/a,prio=1,prio=2", "given prio twice"),
            ("/a,colour=red", "'colour=red' is not an option"),
            ("/a,label=", "not a label"),
            ("/a,label=seventeen letters", "not a label"),
            ("/a,discard=always", "once or pages"),
            ("/a,crypt=aes", "crypt: it takes on or off"),
            ("/a,insecure=yes", "on or off"),
            ("ram:1G,insecure=on", "cannot have insecure"),
            ("/a,latency=1ms", "only RAM devices"),
            ("ram:", "needs a size"),
            ("ram:big", "'big' is none"),
            ("ram:1G,latency=5", "latency: it takes a time"),
            ("ram:1G,latency=11s", "up to 10s"),
            ("ram:1G,bandwidth=0", "bandwidth: it takes bytes a second"),
            ("ram:1G,faults=2", "faults: it takes a share"),
            ("ram:1G,faults=0.1:rust", "faults: it takes a share"),
            ("ram:1G,seed=x", "seed: it takes a whole number"),
        ] {
            let error = text.parse::<SwapSpec>().expect_err(text).to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn priorities_are_given_or_below() {
        let list: SwapList = "/a,/b,prio=0,/c,/d,prio=9,/e".parse().unwrap();
        assert_eq!(SwapSpec::priorities(&list.0), [-2, 0, -3, 9, -4]);
    }

    fn text() -> impl Strategy<Value = String> {
        let place = prop_oneof![
            "/[a-z:=. ]{0,8}",
            "[a-z:=.\u{e9}]{1,8}",
            "/[a-z]{1,3}:[0-9]{1,9}[KMG]?",
            "ram:[1-9][0-9]{0,3}[KMG]"
        ];
        let option = prop_oneof![
            "prio=[0-9]{1,5}",
            "label=[a-z :=]{0,18}",
            Just("discard=once".to_owned()),
            Just("discard=pages".to_owned()),
            "crypt=(on|off)",
            "insecure=(on|off)",
            "latency=[0-9]{1,3}(\\.[0-9]{1,3})?(ns|us|ms|s)",
            "bandwidth=[0-9]{1,4}[KMG]?",
            "faults=0?\\.[0-9]{1,9}(:(eio|short|full|slow|flip|rot)\
             (\\+(eio|short|full|slow|flip|rot)){0,3})?",
            "seed=[0-9]{1,20}",
        ];
        let device = (place, prop::collection::vec(option, 0..4))
            .prop_map(|(place, options)| [vec![place], options].concat().join(","));
        prop::collection::vec(device, 0..4).prop_map(|devices| devices.join(","))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_is_written_the_same(text in text()) {
            if let Ok(list) = text.parse::<SwapList>() {
                prop_assert_eq!(&list.to_string().parse::<SwapList>().unwrap(), &list);
                for spec in &list.0 {
                    prop_assert_eq!(&spec.to_string().parse::<SwapSpec>().unwrap(), spec);
                }
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            if let Ok(list) = text.parse::<SwapList>() {
                prop_assert_eq!(list.to_string().parse::<SwapList>().unwrap(), list);
            }
        }
    }
}
