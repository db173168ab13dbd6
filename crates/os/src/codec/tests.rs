//! All codecs: round trips, room that is too short, and bytes that were changed.

use super::*;
use proptest::prelude::*;

/// xorshift64*: the same sequence on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A page of runs of random bytes and runs copied from before, so that all paths are taken.
fn page(random: &mut Random, random_percent: usize) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    let mut at = 0;
    while at < PAGE_SIZE {
        let run = (1 + random.below(200)).min(PAGE_SIZE - at);
        let back = 1 + random.below(at.max(1));
        let fresh = at == 0 || random.below(100) < random_percent;
        for i in at..at + run {
            page[i] = if fresh { random.next() as u8 } else { page[i.saturating_sub(back)] };
        }
        at += run;
    }
    page
}

fn all() -> Vec<Codec> {
    [Codec::None, Codec::Lz4].into_iter().chain(Codec::zstd_levels().map(Codec::Zstd)).collect()
}

fn compressor(codec: Codec) -> Compressor {
    Compressor::new(codec).unwrap()
}

fn decompressor() -> Decompressor {
    Decompressor::new(&[Codec::Lz4, Codec::Zstd(1)]).unwrap()
}

#[test]
fn pages_come_back_as_they_went() {
    let mut decompressor = decompressor();
    let mut stored = [0; 2 * PAGE_SIZE];
    for codec in all() {
        let mut random = Random(1);
        let mut compressor = compressor(codec);
        let mut shortest = usize::MAX;
        for round in 0..101 {
            let page = page(&mut random, round);
            let len =
                compressor.compress(&page, &mut stored).expect("two pages hold any packed page");
            let mut back = [0xAA; PAGE_SIZE];
            decompressor.decompress(codec.id(), &stored[..len], &mut back).unwrap();
            assert!(back == page, "{codec}, round {round}");
            shortest = shortest.min(len);

            // Nothing beyond the room that there is.
            let less = random.below(len);
            let mut short = [0x55; PAGE_SIZE * 2];
            assert_eq!(
                compressor.compress(&page, &mut short[..less]),
                None,
                "{codec}: {len} bytes in {less}"
            );
            assert!(short[less..].iter().all(|b| *b == 0x55), "{codec}, round {round}");
        }
        let fits = if codec == Codec::None { PAGE_SIZE } else { 600 };
        assert!(shortest <= fits, "{codec}: no page was compressible: the test lost its subject");
    }
}

#[test]
fn a_page_gives_the_same_bytes_whatever_the_workspace_held() {
    for codec in [Codec::Lz4, Codec::Zstd(1), Codec::Zstd(3), Codec::Zstd(19)] {
        let mut random = Random(5);
        let mut used = compressor(codec);
        for round in 0..50 {
            let page = page(&mut random, round * 2);
            let [mut one, mut other] = [[0x55; 2 * PAGE_SIZE]; 2];
            let len = used.compress(&page, &mut one);
            assert_eq!(
                compressor(codec).compress(&page, &mut other),
                len,
                "{codec}, round {round}"
            );
            assert!(one == other, "{codec}, round {round}");
        }
    }
}

#[test]
fn denser_codecs_are_denser() {
    let mut random = Random(9);
    let pages: Vec<_> = (0..50).map(|round| page(&mut random, round)).collect();
    let packed = |codec| {
        let mut compressor = compressor(codec);
        pages
            .iter()
            .map(|page| compressor.compress(page, &mut [0; 2 * PAGE_SIZE]).unwrap())
            .sum::<usize>()
    };
    let sizes = [Codec::None, Codec::Lz4, Codec::Zstd(3), Codec::Zstd(19)].map(packed);
    assert!(sizes.is_sorted_by(|a, b| a > b), "{sizes:?}");
}

#[test]
fn random_bytes_do_not_fit_a_page() {
    let page = page(&mut Random(2), 100);
    for codec in [Codec::Lz4, Codec::Zstd(1), Codec::Zstd(19)] {
        assert_eq!(compressor(codec).compress(&page, &mut [0; PAGE_SIZE]), None, "{codec}");
        assert_eq!(compressor(codec).compress(&[0; PAGE_SIZE], &mut []), None, "{codec}");
    }
}

#[test]
fn changed_pages_are_refused_or_decode_to_a_page() {
    let mut decompressor = decompressor();
    let mut stored = [0; 2 * PAGE_SIZE];
    for codec in [Codec::Lz4, Codec::Zstd(3)] {
        let mut random = Random(3);
        let mut compressor = compressor(codec);
        let mut refused = 0;
        for round in 0..2000 {
            let page = page(&mut random, round % 90);
            let len = compressor.compress(&page, &mut stored).unwrap();
            // Exactly sized, so that a checker of memory errors sees a read past the end.
            let mut damaged = stored[..len].to_vec();
            for _ in 0..1 + random.below(4) {
                let at = random.below(len);
                damaged[at] = random.next() as u8;
            }
            let mut out = [[0x55; PAGE_SIZE]; 3];
            refused +=
                usize::from(decompressor.decompress(codec.id(), &damaged, &mut out[1]).is_err());
            assert!(
                out[0] == [0x55; PAGE_SIZE] && out[2] == [0x55; PAGE_SIZE],
                "{codec}: wrote outside"
            );
            // A page cut short ends within a sequence, or yields fewer bytes than a page.
            let cut = stored[..random.below(len)].to_vec();
            assert_eq!(
                decompressor.decompress(codec.id(), &cut, &mut out[1]),
                Err(CorruptPage),
                "{codec}"
            );
            // What went wrong is forgotten.
            decompressor.decompress(codec.id(), &stored[..len], &mut out[1]).unwrap();
            assert!(out[1] == page, "{codec}, round {round}");
        }
        assert!(refused > 50, "{codec}: {refused} of 2000 changed pages refused");
    }
}

proptest! {
    #[test]
    fn any_bytes_unpack_to_a_page_or_not(
        packed in prop::collection::vec(any::<u8>(), 0..PAGE_SIZE + 64),
        bits in 0u64..4,
    ) {
        let mut out = [[0x55; PAGE_SIZE]; 3];
        if let Some(id) = CodecId::from_bits(bits) {
            let done = decompressor().decompress(id, &packed, &mut out[1]);
            let whole = id == CodecId::None && packed.len() == PAGE_SIZE;
            prop_assert_eq!(whole, id == CodecId::None && done.is_ok());
        }
        prop_assert!(out[0] == [0x55; PAGE_SIZE] && out[2] == [0x55; PAGE_SIZE]);
    }

    #[test]
    fn any_page_comes_back(
        words in prop::collection::vec(
            prop_oneof![Just(0u64), 0u64..300, any::<u64>()],
            PAGE_SIZE / 8,
        ),
        codec in prop::sample::select(all()),
    ) {
        let mut page = [0; PAGE_SIZE];
        for (bytes, word) in page.chunks_mut(8).zip(&words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut stored = [0; 2 * PAGE_SIZE];
        let len = compressor(codec).compress(&page, &mut stored).unwrap();
        let mut back = [0; PAGE_SIZE];
        prop_assert_eq!(decompressor().decompress(codec.id(), &stored[..len], &mut back), Ok(()));
        prop_assert!(back == page);
    }
}

#[test]
fn longer_content_than_a_page_is_refused() {
    let mut decompressor = decompressor();
    // One literal, then a match of 15 + 4 + 17 * 255 bytes at distance 1: more than 4096.
    let mut src = vec![0x1F, 7, 1, 0];
    src.extend([255; 17]);
    src.extend([0, 0x50, 1, 2, 3, 4, 5]);
    for (id, packed) in [(CodecId::Lz4, &src[..]), (CodecId::None, &[0; PAGE_SIZE + 1])] {
        assert_eq!(decompressor.decompress(id, packed, &mut [0; PAGE_SIZE]), Err(CorruptPage));
    }
    for id in [CodecId::None, CodecId::Lz4, CodecId::Zstd] {
        assert_eq!(decompressor.decompress(id, &[], &mut [0; PAGE_SIZE]), Err(CorruptPage));
    }
}

#[test]
fn a_codec_that_a_decompressor_is_not_made_for_is_refused() {
    let mut stored = [0; PAGE_SIZE];
    let len = compressor(Codec::Zstd(3)).compress(&[7; PAGE_SIZE], &mut stored).unwrap();
    let mut page = [0; PAGE_SIZE];
    let mut without = Decompressor::new(&[Codec::Lz4]).unwrap();
    assert_eq!(without.decompress(CodecId::Zstd, &stored[..len], &mut page), Err(CorruptPage));
    let mut with = Decompressor::new(&[Codec::Lz4, Codec::Zstd(9)]).unwrap();
    assert_eq!(with.decompress(CodecId::Zstd, &stored[..len], &mut page), Ok(()));
}

#[test]
fn codecs_have_names() {
    for codec in all() {
        assert_eq!(codec.to_string().parse(), Ok(codec));
        assert_eq!(CodecId::from_bits(codec.id().to_bits()), Some(codec.id()));
    }
    assert_eq!(("zstd".parse(), CodecId::from_bits(3)), (Ok(Codec::Zstd(3)), None));
    assert_eq!(Codec::default().to_string(), "lz4");
    for bad in
        ["", "lz", "LZ4", "lz4:1", "zstd:", "zstd:0", "zstd:20", "zstd:-8", "zstd:3:4", "none:1"]
    {
        let error = bad.parse::<Codec>().unwrap_err().to_string();
        let levels = "1 to 19, or -7 to -1";
        let expected = format!(
            "'{bad}' is no codec: write lz4, zstd, zstd:LEVEL with a level of {levels}, or none"
        );
        assert_eq!(error, expected);
    }
}
