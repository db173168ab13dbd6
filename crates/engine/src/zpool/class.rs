//! The size classes: how large the places are that objects are stored in, and the chunks that hold
//! them.
//!
//! A class is a size of place of which `n` fit a chunk of `2^order` frames with next to nothing
//! left at its end. Large chunks have sizes closer to one another, which cuts what rounding wastes;
//! small chunks leave less empty where a class has few objects, and most sizes that a large chunk
//! has, a smaller one has too. So from the largest size downwards, each next class is one between
//! [`STEP_MILLI`] (or [`STEP_BYTES`]) and twice that smaller: of the smallest chunk that has such a
//! size.
//!
//! What that wastes of a pool in steady turnover, with compaction, in percent of what the pool
//! occupies, for lengths as LZ4 leaves them (mean 1.5 KiB), for 4, 16, 64, 256 MiB stored (a
//! simulation; each object's 12 bytes of its own included):
//!
//! | chunks of | step | classes | 4 | 16 | 64 | 256 |
//! |---|---|---|---|---|---|---|
//! | 8 frames | 64 bytes | 35 | 15.7 | 7.2 | 5.1 | 4.5 |
//! | 8 frames | 32 bytes | 53 | 20.2 | 8.1 | 4.9 | 4.1 |
//! | 16 frames | 64 bytes | 45 | 27.2 | 10.5 | 5.1 | 3.8 |
//! | 1 to 16 frames | 3.5 %, 32 bytes | 53 | 12.3 | 6.1 | 4.1 | 3.6 |
//! | 4 to 16 frames | 3.5 %, 32 bytes | 55 | 15.6 | 6.8 | 4.3 | 3.6 |
//! | 4 to 16 frames | 2.5 %, 32 bytes | 63 | 19.1 | 7.3 | 3.9 | 3.0 |
//!
//! Chunks of one frame would be better by a little, but each that comes back costs a flush (20 us
//! where the process runs on several processors), for two or three objects.

use crate::units::PAGE_SIZE;

/// The longest object.
pub const OBJECT_BYTES_MAX: usize = PAGE_SIZE;
/// The smallest chunk is of `2^2` frames, 16 KiB: ten objects of the mean length share the cost of
/// its coming and going.
pub(super) const ORDER_MIN: u8 = 2;

/// The largest chunk is of `2^4` frames, 64 KiB, which the buddy allocator must find side by side.
pub(super) const ORDER_MAX: u8 = 4;

/// Bytes kept with each object, at the end of its place: who owns it and how long it is (8), a
/// checksum (4).
pub const TRAILER_BYTES: usize = 12;

/// Sizes are multiples of this: the trailers lie aligned, and the table from length to class stays
/// short.
const ALIGN_BYTES: usize = 4;

/// Least difference between two classes, in thousandths of the larger one. Half of the difference
/// is lost with each object on average, while each class more has a chunk more that is partly
/// empty.
const STEP_MILLI: usize = 35;

/// Least difference between two classes in bytes: small objects are not worth many classes.
const STEP_BYTES: usize = 32;

/// The smallest class: with its trailer, an object of 60 bytes.
const SMALLEST_BYTES: usize = 72;

/// Most objects in a chunk: its bitmap has 60 bits with each frame of the smallest.
pub(super) const OBJECTS_MAX: usize = 60 << ORDER_MIN;

/// The longest place.
const LARGEST_BYTES: usize = OBJECT_BYTES_MAX + TRAILER_BYTES;

/// A size class.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeClass {
    /// Distance of its places: the longest object that it holds, and the trailer.
    pub bytes: usize,
    /// Objects to a chunk.
    pub objects: usize,
    /// Its chunks are of `2^order` frames.
    pub order: u8,
}

impl SizeClass {
    /// Frames of a chunk.
    pub fn chunk_frames(self) -> usize {
        1 << self.order
    }
}

const fn chunk_bytes(order: u8) -> usize {
    PAGE_SIZE << order
}

/// The largest class of chunks of `2^order` frames of at most `bytes`; `None` where more objects
/// would fit than a bitmap has bits for.
const fn at_most(order: u8, bytes: usize) -> Option<SizeClass> {
    let mut objects = chunk_bytes(order).div_ceil(bytes + ALIGN_BYTES);
    while chunk_bytes(order) / objects / ALIGN_BYTES * ALIGN_BYTES > bytes {
        objects += 1;
    }
    let bytes = chunk_bytes(order) / objects / ALIGN_BYTES * ALIGN_BYTES;
    // Rounding may have made room for more.
    let objects = chunk_bytes(order) / bytes;
    if objects <= OBJECTS_MAX { Some(SizeClass { bytes, objects, order }) } else { None }
}

/// Next class below one of `bytes`; `None` at the end.
const fn below(bytes: usize) -> Option<SizeClass> {
    let milli = bytes * STEP_MILLI / 1000;
    let step = if milli > STEP_BYTES { milli } else { STEP_BYTES };
    if bytes < SMALLEST_BYTES + step {
        return None;
    }
    let mut best: Option<SizeClass> = None;
    let mut order = ORDER_MAX + 1;
    while order > ORDER_MIN {
        order -= 1;
        let Some(class) = at_most(order, bytes - step) else { continue };
        let near = class.bytes + 2 * step >= bytes;
        let better = match best {
            None => true,
            Some(best) => near || class.bytes >= best.bytes,
        };
        if better && class.bytes >= SMALLEST_BYTES {
            best = Some(class);
        }
    }
    best
}

const LARGEST: SizeClass =
    match at_most(ORDER_MAX, chunk_bytes(ORDER_MAX) / (chunk_bytes(ORDER_MAX) / LARGEST_BYTES)) {
        Some(class) => class,
        None => unreachable!(),
    };

const CLASS_COUNT: usize = {
    let (mut count, mut bytes) = (1, LARGEST.bytes);
    while let Some(next) = below(bytes) {
        count += 1;
        bytes = next.bytes;
    }
    count
};

/// All classes, largest first.
pub(super) static CLASSES: [SizeClass; CLASS_COUNT] = CLASS_TABLE;

const CLASS_TABLE: [SizeClass; CLASS_COUNT] = {
    let mut classes = [LARGEST; CLASS_COUNT];
    let mut i = 1;
    while i < CLASS_COUNT {
        classes[i] = match below(classes[i - 1].bytes) {
            Some(class) => class,
            None => unreachable!(),
        };
        i += 1;
    }
    classes
};

/// Class by length of the place in units of [`ALIGN_BYTES`], rounded up.
static CLASS_OF: [u8; LARGEST_BYTES.div_ceil(ALIGN_BYTES) + 1] = {
    assert!(CLASS_COUNT < u8::MAX as usize && LARGEST.bytes >= LARGEST_BYTES);
    let mut table = [0; LARGEST_BYTES.div_ceil(ALIGN_BYTES) + 1];
    let (mut units, mut class) = (table.len() - 1, 0);
    while units > 0 {
        while class + 1 < CLASS_COUNT && CLASS_TABLE[class + 1].bytes >= units * ALIGN_BYTES {
            class += 1;
        }
        table[units] = class as u8;
        units -= 1;
    }
    table
};

/// The smallest class that holds `len` bytes, 1 to [`OBJECT_BYTES_MAX`].
pub(super) fn class_of(len: usize) -> usize {
    CLASS_OF[(len + TRAILER_BYTES).div_ceil(ALIGN_BYTES)] as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_that_holds_it() {
        for len in 1..=OBJECT_BYTES_MAX {
            let (class, place) = (class_of(len), len + TRAILER_BYTES);
            assert!(CLASSES[class].bytes >= place);
            assert!(
                CLASSES.get(class + 1).is_none_or(|smaller| smaller.bytes < place),
                "{len} bytes: class {class}"
            );
        }
    }

    #[test]
    fn classes_waste_little() {
        assert!(CLASSES.is_sorted_by(|a, b| a.bytes >= b.bytes + STEP_BYTES));
        assert!((50..60).contains(&CLASSES.len()), "{} classes: {CLASSES:?}", CLASSES.len());
        for class in &CLASSES {
            assert!(class.objects <= OBJECTS_MAX && class.bytes >= SMALLEST_BYTES);
            assert!(
                (ORDER_MIN..=ORDER_MAX).contains(&class.order)
                    && class.bytes.is_multiple_of(ALIGN_BYTES)
            );
            // At most what rounding to ALIGN_BYTES loses, an object each.
            let tail = chunk_bytes(class.order) - class.objects * class.bytes;
            assert!(
                tail < class.objects * ALIGN_BYTES,
                "class of {} bytes leaves {tail}",
                class.bytes
            );
        }
        // Over all lengths from 256 bytes to the longest that is worth storing, the bytes of full
        // chunks that hold no data.
        let lengths = 256..=3632;
        let place = |len: usize| {
            let class = CLASSES[class_of(len)];
            chunk_bytes(class.order) as f64 / class.objects as f64
        };
        let used = lengths.clone().sum::<usize>() as f64 / lengths.map(place).sum::<f64>();
        assert!(used > 0.968, "share of full chunks that is data: {used}");
    }
}
