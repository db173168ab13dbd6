//! Reads any page as the header of a swap device. Bytes in front of the magic of either kind, or
//! without any; what is accepted as ours is exactly what would be written, and what is said of a
//! kernel swap area can be true.

use arbitrary::Arbitrary;
use overspill::device::header::{Header, MAGIC, OwnHeader};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kind: u8,
    fields: [u32; 8],
    text: &'a [u8],
}

/// The target.
pub fn run(bytes: &[u8]) {
    let Some(input) = crate::made_of::<Input>(bytes) else { return };
    let mut page = [0; 4096];
    match input.kind % 3 {
        0 => {
            page[..MAGIC.len()].copy_from_slice(MAGIC);
            let text = &input.text[..input.text.len().min(2000)];
            page[MAGIC.len()..][..text.len()].copy_from_slice(text);
            // With the checksum that is right, so that the lines are looked at.
            let end = MAGIC.len() + text.len();
            if input.fields[0] % 2 == 0 {
                let checksum = format!("checksum={:08x}\n", crc32fast::hash(&page[..end]));
                page[end..][..checksum.len()].copy_from_slice(checksum.as_bytes());
            }
        }
        1 => {
            page[4086..].copy_from_slice(b"SWAPSPACE2");
            for (at, value) in [1024, 1028, 1032, 1536, 1540, 4080].into_iter().zip(input.fields) {
                page[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            let label = &input.text[..input.text.len().min(16)];
            page[1052..][..label.len()].copy_from_slice(label);
        }
        _ => {
            let len = input.text.len().min(4096);
            page[..len].copy_from_slice(&input.text[..len]);
        }
    }
    match Header::parse(&page) {
        Ok(Header::Own(header)) => {
            let mut again = [0; 4096];
            OwnHeader::write(&header, &mut again);
            assert_eq!(Header::parse(&again), Ok(Header::Own(header)));
        }
        Ok(Header::Kernel(header)) => {
            assert!(header.pages > 1 && header.bad_pages.len() <= 637);
            let exists = |page: &u32| *page > 0 && u64::from(*page) < header.pages;
            assert!(header.bad_pages.iter().all(exists));
        }
        Ok(Header::Empty | Header::Foreign) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
