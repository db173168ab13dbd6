//! The first page of a named device: what it says of the device, and that the device may be
//! overwritten.
//!
//! A header of ours is text: a line that says so, then `uuid=`, `label=`, `size=` (bytes), and the
//! CRC-32 of all that in `checksum=`. The header of a kernel swap area, as mkswap(8) makes it,
//! stays as it is and is only read: how large the area is, and which of its pages are bad. Anything
//! else is somebody's data.

use crate::device::spec::Label;
use crate::units::{Bytes, PAGE_SIZE, Uuid};
use std::fmt;

/// What a header of ours begins with.
pub const MAGIC: &[u8] = b"overspill swap device 1\n";
/// How the header page of a kernel swap area ends.
const KERNEL_MAGIC: &[u8] = b"SWAPSPACE2";

// Where the fields of a kernel swap area lie, in bytes: 32-bit words, a UUID and a label, and the
// numbers of bad pages. The first 1024 bytes are for boot blocks.
const KERNEL_VERSION: usize = 1024;
const KERNEL_LAST_PAGE: usize = 1028;
const KERNEL_BAD_COUNT: usize = 1032;
const KERNEL_UUID: usize = 1036;
const KERNEL_LABEL: usize = 1052;
const KERNEL_BAD_PAGES: usize = 1536;
/// Bad pages that fit between there and the magic.
const KERNEL_BAD_MAX: u32 = ((PAGE_SIZE - KERNEL_MAGIC.len() - KERNEL_BAD_PAGES) / 4) as u32;
const _: () = assert!(PAGE_SIZE == 4096, "the kernel's magic ends the first 4 KiB");

/// What a header of ours says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnHeader {
    /// The device's identity.
    pub uuid: Uuid,
    /// Its label.
    pub label: Option<Label>,
    /// Its size.
    pub size: Bytes,
}

impl OwnHeader {
    /// Writes it into a page.
    pub fn write(&self, page: &mut [u8; PAGE_SIZE]) {
        let label = self.label.as_ref().map(|label| format!("label={label}\n")).unwrap_or_default();
        let mut text = MAGIC.to_vec();
        text.extend_from_slice(
            format!("uuid={}\n{label}size={}\n", self.uuid, self.size.0).as_bytes(),
        );
        text.extend_from_slice(format!("checksum={:08x}\n", crc32fast::hash(&text)).as_bytes());
        page.fill(0);
        page[..text.len()].copy_from_slice(&text);
    }
}

/// What the header of a kernel swap area says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelHeader {
    /// The area's identity, if it has one.
    pub uuid: Option<Uuid>,
    /// Its label; empty if it has none.
    pub label: String,
    /// Its size in pages, that of the header included.
    pub pages: u64,
    /// Pages that must not be used.
    pub bad_pages: Vec<u32>,
}

/// The first page of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Header {
    /// All zeros, or our first line and nothing else: free to be taken.
    Empty,
    /// One of ours.
    Own(OwnHeader),
    /// That of a kernel swap area.
    Kernel(KernelHeader),
    /// Something else, which must not be overwritten.
    Foreign,
}

/// What is wrong with a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadHeader(&'static str);

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Header {
    /// Reads the first page of a device.
    ///
    /// # Errors
    /// If it is a header of ours, or of a kernel swap area, that cannot be right.
    pub fn parse(page: &[u8; PAGE_SIZE]) -> Result<Header, BadHeader> {
        if page.ends_with(KERNEL_MAGIC) {
            return parse_kernel(page).map(Header::Kernel);
        }
        if let Some(rest) = page.strip_prefix(MAGIC) {
            return parse_own(page, rest);
        }
        Ok(if page.iter().all(|byte| *byte == 0) { Header::Empty } else { Header::Foreign })
    }
}

fn parse_own(page: &[u8], rest: &[u8]) -> Result<Header, BadHeader> {
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let (text, padding) = rest.split_at(end);
    if padding.iter().any(|byte| *byte != 0) {
        return Err(BadHeader("something follows its text"));
    }
    if text.is_empty() {
        return Ok(Header::Empty);
    }
    let text = std::str::from_utf8(text).map_err(|_| BadHeader("its text is not UTF-8"))?;
    let no_checksum = BadHeader("it does not end in a checksum");
    let (fields, checksum) = text.rsplit_once("checksum=").ok_or(no_checksum)?;
    let checksum =
        checksum.strip_suffix('\n').filter(|digits| digits.len() == 8).ok_or(no_checksum)?;
    let checksum = u32::from_str_radix(checksum, 16).map_err(|_| no_checksum)?;
    if checksum != crc32fast::hash(&page[..MAGIC.len() + fields.len()]) {
        return Err(BadHeader("its checksum is wrong"));
    }
    let (mut uuid, mut label, mut size) = (None, None, None);
    for line in fields.lines() {
        match line.split_once('=') {
            Some(("uuid", value)) => {
                uuid = Some(value.parse().map_err(|()| BadHeader("its UUID is not one"))?)
            }
            Some(("label", value)) => {
                label = Some(value.parse().map_err(|_| BadHeader("its label is not one"))?)
            }
            Some(("size", value)) => {
                size = Some(value.parse().map_err(|_| BadHeader("its size is not one"))?)
            }
            _ => return Err(BadHeader("it has a line that this version does not know")),
        }
    }
    match (uuid, size) {
        (Some(uuid), Some(size)) => Ok(Header::Own(OwnHeader { uuid, label, size: Bytes(size) })),
        _ => Err(BadHeader("it has no UUID or no size")),
    }
}

fn parse_kernel(page: &[u8; PAGE_SIZE]) -> Result<KernelHeader, BadHeader> {
    let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"));
    if word(KERNEL_VERSION) != 1 {
        return Err(BadHeader(
            "it is that of a kernel swap area, and its version is not 1 in this byte order",
        ));
    }
    let (last, count) = (word(KERNEL_LAST_PAGE), word(KERNEL_BAD_COUNT));
    if last == 0 || count > KERNEL_BAD_MAX {
        return Err(BadHeader(
            "it is that of a kernel swap area without pages, or with more bad pages than fit",
        ));
    }
    let bad_pages: Vec<u32> = (0..count as usize).map(|i| word(KERNEL_BAD_PAGES + 4 * i)).collect();
    if bad_pages.iter().any(|page| !(1..=last).contains(page)) {
        return Err(BadHeader(
            "it is that of a kernel swap area, and names bad pages that are not in it",
        ));
    }
    let uuid = Uuid(page[KERNEL_UUID..KERNEL_LABEL].try_into().expect("sixteen bytes"));
    let label = &page[KERNEL_LABEL..KERNEL_LABEL + Label::BYTES_MAX];
    let label = label.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(KernelHeader {
        uuid: (uuid.0 != [0; 16]).then_some(uuid),
        label: String::from_utf8_lossy(label).into_owned(),
        pages: u64::from(last) + 1,
        bad_pages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own(label: Option<&str>) -> (OwnHeader, [u8; PAGE_SIZE]) {
        let label = label.map(|label| label.parse().unwrap());
        let header = OwnHeader { uuid: Uuid::random().unwrap(), label, size: Bytes(3 << 30) };
        let mut page = [7; PAGE_SIZE];
        header.write(&mut page);
        (header, page)
    }

    /// As mkswap writes it.
    fn kernel(last: u32, bad: &[u32], label: &[u8]) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        page[..4].copy_from_slice(b"boot");
        for (at, value) in
            [(KERNEL_VERSION, 1), (KERNEL_LAST_PAGE, last), (KERNEL_BAD_COUNT, bad.len() as u32)]
        {
            page[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        page[KERNEL_UUID..KERNEL_UUID + 16].copy_from_slice(&[9; 16]);
        page[KERNEL_LABEL..KERNEL_LABEL + label.len()].copy_from_slice(label);
        for (i, bad) in bad.iter().enumerate().take(KERNEL_BAD_MAX as usize) {
            page[KERNEL_BAD_PAGES + 4 * i..][..4].copy_from_slice(&bad.to_le_bytes());
        }
        page[PAGE_SIZE - KERNEL_MAGIC.len()..].copy_from_slice(KERNEL_MAGIC);
        page
    }

    #[test]
    fn a_header_of_ours_is_read_as_it_was_written() {
        for label in [None, Some("a = b"), Some("sixteen letters."), Some("checksum=0000000")] {
            let (header, page) = own(label);
            assert!(page.starts_with(b"overspill swap device 1\nuuid="));
            assert_eq!(Header::parse(&page), Ok(Header::Own(header)), "{label:?}");
        }
    }

    #[test]
    fn one_wrong_byte_is_noticed() {
        let (_, page) = own(Some("fast"));
        for at in MAGIC.len()..PAGE_SIZE {
            let mut page = page;
            page[at] ^= 1;
            Header::parse(&page).expect_err("a changed byte");
        }
        let mut bare = [0; PAGE_SIZE];
        bare[..MAGIC.len()].copy_from_slice(MAGIC);
        assert_eq!(Header::parse(&bare), Ok(Header::Empty));
        bare[2000] = 1;
        assert_eq!(Header::parse(&bare).unwrap_err().to_string(), "something follows its text");
    }

    #[test]
    fn a_kernel_swap_area_is_read() {
        let header = KernelHeader {
            uuid: Some(Uuid([9; 16])),
            label: "swap".into(),
            pages: 256,
            bad_pages: vec![5, 255],
        };
        assert_eq!(Header::parse(&kernel(255, &[5, 255], b"swap")), Ok(Header::Kernel(header)));
        let full = kernel(1 << 20, &[7; KERNEL_BAD_MAX as usize], b"sixteen letters.");
        let Ok(Header::Kernel(read)) = Header::parse(&full) else { panic!("it is one") };
        assert_eq!((read.bad_pages.len(), read.label.as_str()), (637, "sixteen letters."));
    }

    #[test]
    fn a_kernel_swap_area_that_cannot_be_is_refused() {
        let mut version = kernel(255, &[], b"");
        version[KERNEL_VERSION..KERNEL_VERSION + 4].copy_from_slice(&1u32.to_be_bytes());
        for page in [
            version,
            kernel(0, &[], b""),
            kernel(255, &[1; KERNEL_BAD_MAX as usize + 1], b""),
            kernel(255, &[0], b""),
            kernel(255, &[256], b""),
        ] {
            Header::parse(&page).expect_err("it is wrong");
        }
    }

    #[test]
    fn anything_else_is_somebodys_data() {
        let mut page = [0; PAGE_SIZE];
        assert_eq!(Header::parse(&page), Ok(Header::Empty));
        page[4095] = 1;
        assert_eq!(Header::parse(&page), Ok(Header::Foreign));
        page[PAGE_SIZE - 10..].copy_from_slice(b"SWAP-SPACE");
        assert_eq!(Header::parse(&page), Ok(Header::Foreign), "the kernel's version 0");
    }

    proptest! {
        #[test]
        fn any_page_is_read_or_refused(
            kind in 0..3usize,
            bytes in prop::collection::vec((0..PAGE_SIZE, any::<u8>()), 0..40),
        ) {
            let pages = [kernel(1000, &[3, 4], b"x"), own(Some("x")).1, [0; PAGE_SIZE]];
            let mut page = pages[kind];
            bytes.into_iter().for_each(|(at, byte)| page[at] = byte);
            if let Ok(Header::Own(header)) = Header::parse(&page) {
                let mut again = [0; PAGE_SIZE];
                header.write(&mut again);
                prop_assert_eq!(again, page);
            }
        }
    }
}
