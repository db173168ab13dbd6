//! What is kept with each object, at the end of its place.

use super::class::{OBJECT_BYTES_MAX, TRAILER_BYTES};

/// Owner, length and checksum of an object. A trailer lies at the end of the object's place, so
/// that it is found without knowing the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// The owner in the low [`OWNER_BITS`] bits, the length less one above.
    word: u64,
    /// CRC-32 of the data, begun with the word folded to half. At 1.5 KiB crc32fast takes 70 to 90
    /// ns, the crc32c crate 120 to 140.
    checksum: u32,
}

/// Bits of an owner's name.
pub const OWNER_BITS: u32 = 48;

impl Trailer {
    /// That of `data`.
    pub fn new(owner: u64, data: &[u8]) -> Trailer {
        assert!(owner < 1 << OWNER_BITS, "an owner has {OWNER_BITS} bits: {owner:#x}");
        let word = (data.len() as u64 - 1) << OWNER_BITS | owner;
        Trailer { word, checksum: checksum(word, data) }
    }

    /// Whether this is the trailer of `data`.
    pub fn fits(self, data: &[u8]) -> bool {
        self.word >> OWNER_BITS == data.len() as u64 - 1
            && self.checksum == checksum(self.word, data)
    }

    /// Who owns the object.
    pub fn owner(self) -> u64 {
        self.word & ((1 << OWNER_BITS) - 1)
    }

    /// Bytes of the object; `None` when that cannot be, as the trailer was damaged.
    pub fn len_bytes(self) -> Option<usize> {
        let len = (self.word >> OWNER_BITS) as usize + 1;
        (len <= OBJECT_BYTES_MAX).then_some(len)
    }

    pub fn to_bytes(self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..8].copy_from_slice(&self.word.to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; TRAILER_BYTES]) -> Trailer {
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let checksum = u32::from_le_bytes(bytes[8..].try_into().expect("four bytes"));
        Trailer { word, checksum }
    }
}

fn checksum(word: u64, data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial((word ^ (word >> 32)) as u32);
    hasher.update(data);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_trailer_keeps_its_parts_and_fits_its_data_only() {
        let owner = 0xFEDC_BA98_7654;
        let data: Vec<u8> = (0..3000u32).map(|i| ((i * i) >> 5) as u8).collect();
        let trailer = Trailer::from_bytes(Trailer::new(owner, &data).to_bytes());
        assert_eq!((trailer.owner(), trailer.len_bytes()), (owner, Some(3000)));
        assert!(trailer.fits(&data) && !trailer.fits(&data[..2999]));
        for bit in 0..8 * TRAILER_BYTES {
            let mut bytes = trailer.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!Trailer::from_bytes(bytes).fits(&data), "bit {bit}");
        }
    }

    proptest! {
        /// A stray write of the program's may have hit it.
        #[test]
        fn any_bytes_are_a_trailer(
            bytes in any::<[u8; TRAILER_BYTES]>(),
            data in prop::collection::vec(any::<u8>(), 1..64),
        ) {
            let trailer = Trailer::from_bytes(bytes);
            prop_assert_eq!(trailer.to_bytes(), bytes);
            let len = trailer.len_bytes();
            prop_assert!(len.is_none_or(|len| (1..=OBJECT_BYTES_MAX).contains(&len)));
            prop_assert!(trailer.owner() < 1 << OWNER_BITS);
            prop_assert!(!trailer.fits(&data) || Trailer::new(trailer.owner(), &data) == trailer);
        }
    }

    #[test]
    #[should_panic(expected = "an owner has 48 bits")]
    fn a_longer_owner_is_refused() {
        Trailer::new(1 << 48, &[1]);
    }
}
