//! The size classes: how large the places are that objects are stored in.
//!
//! A class is the largest size of which `n` fit a chunk, so that nothing but rounding is left at the chunk's end. A
//! larger `n` gives a smaller size; from 4096 bytes (8 to a chunk) downwards each next class is the first at least
//! [`STEP_BYTES`] smaller. Above 1024 bytes that is every `n`, below a class every 32 bytes.

use super::CHUNK_ORDER;
use crate::base::PAGE_SIZE;

/// Bytes of a chunk.
pub(super) const CHUNK_BYTES: usize = PAGE_SIZE << CHUNK_ORDER;

/// Sizes are multiples of this: the copies of objects begin aligned, and the table from length to class stays short.
const ALIGN_BYTES: usize = 16;

/// Least difference between two classes. On average half of it is lost with each small object, while each class more may
/// hold partly empty chunks of its own. Waste measured after long turnover of mixed lengths, with 4, 16, 64, 256 MiB
/// stored: step 32 27.8, 13.5, 7.8, 5.3 %; step 64 23.4, 12.0, 7.7, 5.4 %; step 128 20.1, 11.9, 8.1, 6.1 %.
const STEP_BYTES: usize = 64;

/// The smallest class: its objects to a chunk give the length of the chunk's bitmap.
const SMALLEST_BYTES: usize = 64;

/// Most objects in a chunk.
pub(super) const OBJECTS_MAX: usize = CHUNK_BYTES / SMALLEST_BYTES;

/// A size class.
#[derive(Clone, Copy)]
pub(super) struct SizeClass {
    /// Distance of its objects; the longest that it holds.
    pub bytes: usize,
    /// Objects to a chunk.
    pub objects: usize,
}

/// Next class below one of `bytes`; `None` at the end.
const fn below(bytes: usize) -> Option<SizeClass> {
    let mut objects = CHUNK_BYTES / bytes + 1;
    while objects <= OBJECTS_MAX {
        let size = CHUNK_BYTES / objects / ALIGN_BYTES * ALIGN_BYTES;
        if size + STEP_BYTES <= bytes {
            // Rounding may have made room for more.
            return Some(SizeClass { bytes: size, objects: CHUNK_BYTES / size });
        }
        objects += 1;
    }
    None
}

const LARGEST: SizeClass = SizeClass { bytes: PAGE_SIZE, objects: CHUNK_BYTES / PAGE_SIZE };

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

/// Class by length in units of [`ALIGN_BYTES`], rounded up.
static CLASS_OF: [u8; PAGE_SIZE / ALIGN_BYTES + 1] = {
    assert!(CLASS_COUNT <= u8::MAX as usize);
    let mut table = [0; PAGE_SIZE / ALIGN_BYTES + 1];
    let (mut units, mut class) = (PAGE_SIZE / ALIGN_BYTES, 0);
    while units > 0 {
        while class + 1 < CLASS_COUNT && CLASS_TABLE[class + 1].bytes >= units * ALIGN_BYTES {
            class += 1;
        }
        table[units] = class as u8;
        units -= 1;
    }
    table
};

/// The smallest class that holds `len` bytes, 1 to 4096.
pub(super) fn class_of(len: usize) -> usize {
    CLASS_OF[len.div_ceil(ALIGN_BYTES)] as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_that_holds_it() {
        for len in 1..=PAGE_SIZE {
            let class = class_of(len);
            assert!(CLASSES[class].bytes >= len);
            assert!(CLASSES.get(class + 1).is_none_or(|smaller| smaller.bytes < len), "{len} bytes: class {class}");
        }
    }

    #[test]
    fn classes_waste_little() {
        assert!(CLASSES.is_sorted_by(|a, b| a.bytes >= b.bytes + STEP_BYTES));
        assert!(CLASSES.len() == 36, "{} classes", CLASSES.len());
        for class in &CLASSES {
            assert!(class.objects <= OBJECTS_MAX && class.bytes >= SMALLEST_BYTES);
            assert!(class.bytes.is_multiple_of(ALIGN_BYTES));
            // At most what rounding to ALIGN_BYTES loses, an object each.
            let tail = CHUNK_BYTES - class.objects * class.bytes;
            assert!(tail < class.objects * ALIGN_BYTES, "class of {} bytes leaves {tail}", class.bytes);
        }
        // Over all lengths from 256 bytes on, the mean share of a chunk that holds no data.
        let used = |len: usize| (len * CLASSES[class_of(len)].objects) as f64 / CHUNK_BYTES as f64;
        let mean = (256..=PAGE_SIZE).map(used).sum::<f64>() / (PAGE_SIZE - 255) as f64;
        assert!(mean > 0.94, "mean use of full chunks: {mean}");
    }
}
