//! Unpacks any bytes as a page of any codec: the result is a page or an error, and nothing beside
//! the page is written. A page that was packed comes back, also after bytes that could not be
//! unpacked; changed bytes may give another page, and nothing worse.

use arbitrary::Arbitrary;
use overspill_os::PAGE_SIZE;
use overspill_os::codec::{Codec, CodecId, Compressor, CorruptPage, Decompressor};
use std::cell::RefCell;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    codec: u8,
    /// Where a packed page is changed, and to what.
    changes: [(u16, u8); 3],
    bytes: &'a [u8],
}

/// Not of a level that parses optimally: there, GCC's address sanitizer takes a constant table for
/// a variable out of scope.
const CODECS: [Codec; 4] = [Codec::None, Codec::Lz4, Codec::Zstd(1), Codec::Zstd(6)];

struct Codecs {
    compressors: Vec<Compressor>,
    decompressor: Decompressor,
}

thread_local! {
    static ALL: RefCell<Codecs> = RefCell::new(Codecs {
        compressors: CODECS.iter().map(|codec| Compressor::new(*codec).unwrap()).collect(),
        decompressor: Decompressor::new(&CODECS).unwrap(),
    });
}

impl Codecs {
    fn decompress(&mut self, id: CodecId, packed: &[u8]) -> Result<[u8; PAGE_SIZE], CorruptPage> {
        let mut out = [[0x55; PAGE_SIZE]; 3];
        // Memory that ends where it ends, so that a read past its end is seen.
        let packed = Vec::from(packed);
        let done = self.decompressor.decompress(id, &packed, &mut out[1]);
        assert!(out[0] == [0x55; PAGE_SIZE] && out[2] == [0x55; PAGE_SIZE]);
        done.map(|()| out[1])
    }
}

/// The target.
pub fn run(bytes: &[u8]) {
    let Some(input) = crate::made_of::<Input>(bytes) else { return };
    ALL.with_borrow_mut(|all| {
        let codec = CODECS[usize::from(input.codec) % CODECS.len()];
        // 1. The bytes as they are.
        let _ = all.decompress(codec.id(), input.bytes);
        // 2. A page made of them, packed and unpacked.
        let mut page = [0; PAGE_SIZE];
        page.iter_mut().zip(input.bytes.iter().cycle()).for_each(|(to, from)| *to = *from);
        let mut packed = vec![0; 2 * PAGE_SIZE];
        let compressor = &mut all.compressors[usize::from(input.codec) % CODECS.len()];
        let len = compressor.compress(&page, &mut packed).unwrap();
        packed.truncate(len);
        assert!(all.decompress(codec.id(), &packed) == Ok(page));
        // 3. The same with changes.
        for (at, value) in input.changes {
            packed[usize::from(at) % len] = value;
        }
        let _ = all.decompress(codec.id(), &packed);
    });
}
