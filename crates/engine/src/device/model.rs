//! How a RAM device behaves: its latency, its bandwidth, and what goes wrong.

use crate::units::{Bytes, parse_time};
use std::fmt;
use std::ops::BitOr;
use std::str::FromStr;
use std::time::Duration;

/// Memory that simulates a device, for tests and measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RamModel {
    /// How long each operation takes at least. Operations in flight at once wait at once.
    pub latency: Duration,
    /// Bytes a second that go through, all operations together.
    pub bandwidth: Option<Bytes>,
    /// What goes wrong.
    pub faults: Option<FaultModel>,
    /// What the sequence of faults follows from.
    pub seed: u64,
}

impl RamModel {
    /// The options that set it.
    pub(super) const KEYS: [&str; 4] = ["latency", "bandwidth", "faults", "seed"];

    /// Applies an option of [`RamModel::KEYS`]; an error says which values it takes.
    pub(super) fn apply(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "latency" => {
                self.latency = parse_time(value).ok_or("a time up to 10s, such as 20us or 1.5ms")?
            }
            "bandwidth" => {
                let bytes = value.parse().ok().filter(|bytes: &Bytes| bytes.0 > 0);
                self.bandwidth = Some(bytes.ok_or("bytes a second, such as 500M or 2G")?);
            }
            "faults" => self.faults = Some(value.parse().map_err(|()| FAULTS_TAKE)?),
            "seed" => self.seed = value.parse().map_err(|_| "a whole number")?,
            _ => unreachable!("every key of KEYS is matched"),
        }
        Ok(())
    }
}

/// As options, each with a comma before it.
impl fmt::Display for RamModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.latency.is_zero() {
            write!(f, ",latency={}ns", self.latency.as_nanos())?;
        }
        self.bandwidth.map_or(Ok(()), |bandwidth| write!(f, ",bandwidth={}", bandwidth.0))?;
        self.faults.map_or(Ok(()), |faults| write!(f, ",faults={faults}"))?;
        if self.seed != 0 {
            write!(f, ",seed={}", self.seed)?;
        }
        Ok(())
    }
}

/// What goes wrong with a device, at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultModel {
    /// Of a thousand million operations, how many go wrong.
    pub per_billion: u32,
    /// In which ways.
    pub kinds: FaultKinds,
}

const BILLION: u32 = 1_000_000_000;
const FAULTS_TAKE: &str = "a share of operations between 0 and 1, such as 0.01, or with some of \
                           the kinds eio+short+full+slow+flip+rot, as in 0.01:eio+slow";

impl FromStr for FaultModel {
    type Err = ();

    fn from_str(text: &str) -> Result<FaultModel, ()> {
        let (rate, kinds) = match text.split_once(':') {
            Some((rate, kinds)) => (rate, kinds.parse()?),
            None => (text, FaultKinds::ALL),
        };
        let decimal = rate.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let rate: f64 =
            rate.parse().ok().filter(|rate| decimal && (0.0..=1.0).contains(rate)).ok_or(())?;
        Ok(FaultModel { per_billion: (rate * f64::from(BILLION)).round() as u32, kinds })
    }
}

impl fmt::Display for FaultModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.per_billion / BILLION, self.per_billion % BILLION)?;
        if self.kinds == FaultKinds::ALL { Ok(()) } else { write!(f, ":{}", self.kinds) }
    }
}

/// A set of ways to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultKinds(u8);

impl FaultKinds {
    /// The operation fails with EIO.
    pub const EIO: FaultKinds = FaultKinds(1);
    /// Fewer bytes are moved than were asked for.
    pub const SHORT: FaultKinds = FaultKinds(2);
    /// A write fails with ENOSPC.
    pub const FULL: FaultKinds = FaultKinds(4);
    /// The operation takes much longer.
    pub const SLOW: FaultKinds = FaultKinds(8);
    /// Bits are flipped in what is read; reading it again helps.
    pub const FLIP: FaultKinds = FaultKinds(16);
    /// Bits are flipped in what is written, for good.
    pub const ROT: FaultKinds = FaultKinds(32);
    /// All of them.
    pub const ALL: FaultKinds = FaultKinds(63);

    const NAMES: [(&str, FaultKinds); 6] = [
        ("eio", FaultKinds::EIO),
        ("short", FaultKinds::SHORT),
        ("full", FaultKinds::FULL),
        ("slow", FaultKinds::SLOW),
        ("flip", FaultKinds::FLIP),
        ("rot", FaultKinds::ROT),
    ];

    /// Whether all of `kinds` are in it.
    pub fn has(self, kinds: FaultKinds) -> bool {
        self.0 & kinds.0 == kinds.0
    }
}

impl BitOr for FaultKinds {
    type Output = FaultKinds;
    fn bitor(self, other: FaultKinds) -> FaultKinds {
        FaultKinds(self.0 | other.0)
    }
}

impl FromStr for FaultKinds {
    type Err = ();

    fn from_str(text: &str) -> Result<FaultKinds, ()> {
        text.split('+').try_fold(FaultKinds(0), |kinds, word| {
            let named = FaultKinds::NAMES.iter().find(|(name, _)| *name == word);
            named.map(|(_, kind)| kinds | *kind).ok_or(())
        })
    }
}

impl fmt::Display for FaultKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (name, _) in FaultKinds::NAMES.iter().filter(|(_, kind)| self.has(*kind)) {
            write!(f, "{between}{name}")?;
            between = "+";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ns) in [
            ("0us", 0),
            ("10us", 10_000),
            ("1.5ms", 1_500_000),
            ("500ns", 500),
            ("10s", 10_000_000_000),
        ] {
            assert_eq!(parse_time(text), Some(Duration::from_nanos(ns)), "{text}");
        }
        for text in
            ["", "10", "us", "-1us", "1h", "10.1s", "1e3us", "..us", "99999999999999999999s"]
        {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn shares_are_between_none_and_all() {
        let rate = |text: &str| text.parse().map(|model: FaultModel| model.per_billion);
        assert_eq!((rate("0"), rate("1"), rate("0.000000001")), (Ok(0), Ok(BILLION), Ok(1)));
        for text in ["", "1.1", "-0.1", "nan", "inf", "1e-3", "0.1:", "0.1:eio+"] {
            assert_eq!(rate(text), Err(()), "{text}");
        }
        let model = FaultModel { per_billion: 1, kinds: FaultKinds::EIO | FaultKinds::ROT };
        assert_eq!(model.to_string(), "0.000000001:eio+rot");
    }
}
