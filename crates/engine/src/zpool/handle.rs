//! Names of stored objects.

use super::class::{OBJECT_BYTES_MAX, OBJECTS_MAX, ORDER_MIN};
use crate::units::FrameId;
use std::fmt;

/// The first frame of the chunk of that number.
pub fn first_frame(chunk: u32) -> FrameId {
    FrameId(chunk << ORDER_MIN)
}

/// Names a stored object. Whoever holds it owns the object: it alone frees it, once, and nobody may
/// load it later.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(u64);

impl Handle {
    /// How many low bits of [`Handle::to_bits`] are used.
    pub const BITS: u32 = 48;
    const LEN_BITS: u32 = OBJECT_BYTES_MAX.ilog2();
    const OBJECT_BITS: u32 = OBJECTS_MAX.next_power_of_two().ilog2();
    const CHUNK_BITS: u32 = Handle::BITS - Handle::OBJECT_BITS - Handle::LEN_BITS;
    /// Places of chunks that a handle can name: 2^28 of 16 KiB, an arena of 4 TiB.
    pub(super) const CHUNKS_MAX: usize = 1 << Handle::CHUNK_BITS;

    pub(super) fn new(chunk: u32, object: usize, len: usize) -> Handle {
        debug_assert!((chunk as usize) < Handle::CHUNKS_MAX && object < OBJECTS_MAX);
        debug_assert!((1..=OBJECT_BYTES_MAX).contains(&len));
        let chunk_and_object = (chunk as u64) << Handle::OBJECT_BITS | object as u64;
        Handle(chunk_and_object << Handle::LEN_BITS | (len - 1) as u64)
    }

    /// Bytes of the object, 1 to 4096.
    pub fn len_bytes(self) -> usize {
        (self.0 & ((1 << Handle::LEN_BITS) - 1)) as usize + 1
    }

    pub(super) fn object(self) -> usize {
        (self.0 >> Handle::LEN_BITS) as usize & ((1 << Handle::OBJECT_BITS) - 1)
    }

    pub(super) fn chunk(self) -> u32 {
        (self.0 >> (Handle::LEN_BITS + Handle::OBJECT_BITS)) as u32
    }

    /// The first frame of the chunk that the object lies in.
    pub fn chunk_frame(self) -> FrameId {
        first_frame(self.chunk())
    }

    /// The 48-bit form kept in a page word.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From the 48-bit form.
    pub fn from_bits(bits: u64) -> Handle {
        assert!(bits < 1 << Handle::BITS, "{bits:#x} is no handle");
        Handle(bits)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = (self.chunk() as u64) << ORDER_MIN;
        write!(
            f,
            "Handle(chunk at frame {frame}, object {}, {} bytes)",
            self.object(),
            self.len_bytes()
        )
    }
}
