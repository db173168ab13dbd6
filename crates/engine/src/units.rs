//! Units and identifiers that every room uses.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Size of a page and of a frame in bytes.
pub const PAGE_SIZE: usize = overspill_os::PAGE_SIZE;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = overspill_os::PAGE_SHIFT;

/// A size in bytes. Parsed from `K/KiB/M/MiB/G/GiB/T/TiB` (binary), `KB/MB/GB/TB` (decimal) or a
/// bare number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Whole pages, rounded down.
    pub const fn pages(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// As it is written in a setting: the largest unit of which it is a whole number.
    pub fn exact(self) -> String {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        let fits = |shift: u32| self.0 > 0 && self.0.is_multiple_of(1 << shift);
        let unit = units.into_iter().find(|(shift, _)| fits(*shift));
        unit.map_or(self.0.to_string(), |(shift, unit)| format!("{}{unit}", self.0 >> shift))
    }

    /// The size of `pages` pages.
    pub const fn from_pages(pages: u64) -> Bytes {
        Bytes(pages << PAGE_SHIFT)
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Bytes {
        Bytes(bytes)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let unit = match self.0 {
            0..1024 => 0,
            n => ((63 - n.leading_zeros()) / 10).min(4) as usize,
        };
        let scale = 1u64 << (10 * unit);
        if self.0.is_multiple_of(scale) {
            write!(f, "{} {}", self.0 / scale, UNITS[unit])
        } else {
            write!(f, "{:.1} {}", self.0 as f64 / scale as f64, UNITS[unit])
        }
    }
}

/// Why a size was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSize(String);

impl fmt::Display for BadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a size: write a number with K, M, G or T (binary), KB, MB, GB or TB \
             (decimal), or plain bytes, such as 512M or 1.5G",
            self.0
        )
    }
}

impl std::error::Error for BadSize {}

impl FromStr for Bytes {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Bytes, BadSize> {
        let bad = || BadSize(text.to_owned());
        let trimmed = text.trim();
        let split =
            trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Bytes).ok_or_else(bad);
        }
        // A fraction needs a unit: half a byte means nothing.
        let fraction = number
            .parse::<f64>()
            .ok()
            .filter(|_| scale > 1 && !number.ends_with('.'))
            .ok_or_else(bad)?;
        let bytes = fraction * scale as f64;
        if bytes < (1u64 << 62) as f64 { Ok(Bytes(bytes as u64)) } else { Err(bad()) }
    }
}

/// Longest time that is parsed: 10 s, well beyond any disk that still works.
const TIME_MAX: Duration = Duration::from_secs(10);

/// A number with a unit from ns to s.
pub fn parse_time(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(unit_at);
    let ns = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let time = number.parse::<f64>().ok()? * ns;
    let time = Duration::from_nanos(time.round().min(u64::MAX as f64) as u64);
    (time <= TIME_MAX).then_some(time)
}

/// Longest label of a device in bytes, as in the header of a kernel swap area.
pub const LABEL_BYTES_MAX: usize = 16;

/// Most pages of a folio, or read at once around a missing page.
pub const FOLIO_MAX: usize = 64;

/// One page of a buffer.
pub fn page_mut(buffer: &mut [u8], index: usize) -> &mut [u8; PAGE_SIZE] {
    (&mut buffer[index * PAGE_SIZE..(index + 1) * PAGE_SIZE])
        .try_into()
        .expect("a page is PAGE_SIZE bytes")
}

/// Index of a page within the window of managed addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageIndex(pub usize);

/// Index of a page frame within the arena.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub u32);

impl FrameId {
    /// This frame and those that follow it, `count` in all.
    pub fn run(self, count: usize) -> impl Iterator<Item = FrameId> {
        (self.0..self.0 + count as u32).map(FrameId)
    }
}

/// A swap slot: which device, and the page's place on it.
///
/// Fits the 48 bits of payload of a page word: 6 bits of device, 42 bits of page offset (16 PiB).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(u64);

impl SlotId {
    /// Most devices a pool can have.
    pub const DEVICES_MAX: usize = 64;
    /// The number of no device: slots of pages that are only ever compressed in memory.
    pub const IN_MEMORY: usize = Self::DEVICES_MAX - 1;
    const OFFSET_BITS: u32 = 42;
    /// How many low bits of [`SlotId::to_bits`] are used.
    pub const BITS: u32 = Self::OFFSET_BITS + Self::DEVICES_MAX.ilog2();

    /// The slot `offset` pages into device number `device`.
    pub fn new(device: usize, offset: u64) -> SlotId {
        assert!(device < Self::DEVICES_MAX && offset < 1 << Self::OFFSET_BITS);
        SlotId((device as u64) << Self::OFFSET_BITS | offset)
    }

    /// Number of the device.
    pub fn device(self) -> usize {
        (self.0 >> Self::OFFSET_BITS) as usize
    }

    /// Page offset on the device.
    pub fn offset(self) -> u64 {
        self.0 & ((1 << Self::OFFSET_BITS) - 1)
    }

    /// The slot `n` pages further on the same device.
    pub fn advance(self, n: u64) -> SlotId {
        SlotId::new(self.device(), self.offset() + n)
    }

    /// The 48-bit form kept in a page word.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From the 48-bit form.
    pub fn from_bits(bits: u64) -> SlotId {
        SlotId(bits)
    }
}

/// A universally unique identifier, of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// A random one (version 4 of RFC 9562).
    pub fn random() -> Result<Uuid, overspill_os::Errno> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Uuid(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            f.write_str(if [4, 6, 8, 10].contains(&i) { "-" } else { "" })?;
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = ();

    fn from_str(text: &str) -> Result<Uuid, ()> {
        let dashes = |(i, byte): (usize, u8)| (byte == b'-') == [8, 13, 18, 23].contains(&i);
        if text.len() != 36 || !text.is_ascii() || !text.bytes().enumerate().all(dashes) {
            return Err(());
        }
        let mut digits =
            text.chars().filter(|c| *c != '-').map(|c| c.to_digit(16).map(|digit| digit as u8));
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            let mut digit = || digits.next().flatten().ok_or(());
            *byte = digit()? << 4 | digit()?;
        }
        Ok(Uuid(bytes))
    }
}

impl serde::Serialize for Uuid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_parse_as_documented() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1024),
            ("1KiB", 1024),
            ("1kb", 1000),
            ("256M", 256 << 20),
            ("1.5G", 3 << 29),
            ("2GB", 2_000_000_000),
            (" 3 GiB ", 3 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in
            ["", "M", "-1", "1.5", "1.", "12X", "1e3", "0x10", "99999999999T", "1.2.3M", "1 2"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_size_is_text_and_back(size in any::<u64>(), shift in 0u32..64) {
            prop_assert_eq!(Bytes(size >> shift).exact().parse(), Ok(Bytes(size >> shift)));
        }

        #[test]
        fn any_text_is_a_size_or_none(text in "[0-9.]{0,24} ?[kmgtKMGT]?i?[bB]?|.{0,20}") {
            if let Ok(size) = text.parse::<Bytes>() {
                prop_assert_eq!(size.exact().parse(), Ok(size));
            }
            let _ = parse_time(&text);
        }
    }

    #[test]
    fn sizes_print_in_the_largest_unit() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1 << 20).to_string(), "1 MiB");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
    }

    #[test]
    fn sizes_are_written_in_their_largest_unit() {
        let texts = [0, 1000, 4096, 3 << 20, 5 << 30, 8 << 40].map(|size| Bytes(size).exact());
        assert_eq!(texts, ["0", "1000", "4K", "3M", "5G", "8T"]);
    }

    #[test]
    fn uuids_are_text_and_back() {
        let uuid = Uuid::random().unwrap();
        let text = uuid.to_string();
        assert_eq!((text.parse(), &text[14..15]), (Ok(uuid), "4"));
        assert_ne!(Uuid::random().unwrap(), uuid);
        let known = "00112233-4455-6677-8899-AAbbccddeeff";
        assert_eq!(known.parse::<Uuid>().unwrap().to_string(), known.to_lowercase());
        for text in [
            "",
            "0011223344556677-8899-aabb-ccddeeff00",
            "00112233-4455-6677-8899-aabbccddeef",
            &"-".repeat(36),
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(()), "{text}");
        }
    }
}
