//! `codecs`: how far each codec packs a page, and how long it takes to pack and to unpack it.
//!
//! One thread packs pages of each kind of contents, then unpacks them, with the codecs and
//! workspaces of the engine but without the engine: no faults, no pool. What came back is compared
//! with what went in, outside the timing.

use crate::Common;
use crate::contents::{Contents, WORDS};
use crate::measure::failure::Failure;
use crate::measure::host::Machine;
use crate::measure::threads;
use crate::measure::{self, Sample, Series, Spread, compare};
use crate::report::{Column, Findings, Report, Row, Table, percent, ratio, whole};
use overspill::base::{Bytes, PAGE_SIZE};
use overspill_os::codec::{Codec, Compressor, Decompressor};
use serde_json::json;
use std::fmt;
use std::time::{Duration, Instant};

/// Name of the bench.
const NAME: &str = "codecs";

/// Codecs that are measured unless others are named.
const CODECS: &str = "none,lz4,zstd:-1,zstd:1,zstd:3,zstd:6,zstd:12,zstd:19";

/// Options of `overspill-bench codecs`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Codecs to measure: `none`, `lz4`, `zstd` or `zstd:LEVEL`
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = CODECS)]
    codecs: Vec<Codec>,
    /// Contents to measure with
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "heap,random,zero")]
    contents: Vec<Contents>,
    /// Bytes of pages of each kind
    #[arg(long, value_name = "SIZE", default_value = "4M")]
    size: Bytes,
}

/// Bytes of pages for each byte that they are kept in; a page that does not fit in fewer bytes is
/// kept as it is.
const RATIO: &str = "ratio";
/// Share of the pages that do not fit in fewer bytes.
const REFUSED: &str = "refused_ratio";
const COMPRESS: &str = "compress_ns_per_page";
const DECOMPRESS: &str = "decompress_ns_per_page";
/// Times of LZ4 in the same round, as multiples.
const COMPRESS_LZ4: &str = "compress_of_lz4";
const DECOMPRESS_LZ4: &str = "decompress_of_lz4";

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    codec: Codec,
    contents: Contents,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.codec, self.contents)
    }
}

const TABLES: &[Table] = &[Table {
    title: "Pages of 4 KiB on one thread. A page that does not shrink is kept as it is, and not \
            unpacked.",
    columns: &[
        Column { title: "ratio", figure: RATIO, format: ratio, spread: false },
        Column { title: "kept", figure: REFUSED, format: percent, spread: false },
        Column { title: "pack, ns a page", figure: COMPRESS, format: whole, spread: true },
        Column { title: "of lz4", figure: COMPRESS_LZ4, format: ratio, spread: false },
        Column { title: "unpack, ns a page", figure: DECOMPRESS, format: whole, spread: true },
        Column { title: "of lz4", figure: DECOMPRESS_LZ4, format: ratio, spread: false },
    ],
}];

/// Measures and says what was found.
///
/// # Errors
/// When there is no memory for a workspace, or a page comes back with other content than it went
/// in.
pub fn run(args: &Args) -> Result<Findings, Failure> {
    let cases = plan(args);
    let pages = args.size.pages();
    if pages == 0 {
        return Err(Failure::new(format!(
            "there is no page in a --size of {}: give 4K or more",
            args.size
        )));
    }
    let mut series = measure::rounds(&cases, args.common.rounds, |case| {
        threads::each(&mut [()], |()| measure_one(*case, pages))
            .results
            .pop()
            .expect("one thread has one result")
    })?;
    compare_with_lz4(&cases, &mut series);
    let row = |(case, series): (&Case, &Series)| {
        Row::new(
            &case.codec.to_string(),
            &[("contents", json!(case.contents.to_string()))],
            None,
            series,
        )
    };
    let rows: Vec<Row> = cases.iter().zip(&series).map(row).collect();
    let settings = json!({ "rounds": series[0].len(), "size_bytes": args.size.0, "threads": 1, "pinned": true });
    let conclusion = conclusion(&cases, &rows);
    Ok(Findings {
        report: Report { bench: NAME, machine: Machine::this(), settings, rows },
        groups: &["contents"],
        tables: TABLES,
        conclusion,
        failed: None,
    })
}

/// The cases in the order of their rows.
fn plan(args: &Args) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for case in args
        .contents
        .iter()
        .flat_map(|contents| args.codecs.iter().map(|codec| (*contents, *codec)))
    {
        let case = Case { contents: case.0, codec: case.1 };
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases
}

fn measure_one(case: Case, pages: u64) -> Result<Sample, Failure> {
    let no_memory = |errno| Failure::new(format!("there is no workspace to be had: {errno}"));
    let mut compressor = Compressor::new(case.codec).map_err(no_memory)?;
    let mut decompressor = Decompressor::new(&[case.codec]).map_err(no_memory)?;
    let mut originals = vec![[0; PAGE_SIZE]; pages as usize];
    let mut words = [0; WORDS];
    for (page, number) in originals.iter_mut().zip(0..) {
        case.contents.fill(&mut words, number);
        page.chunks_mut(size_of::<u64>())
            .zip(words)
            .for_each(|(b, word)| b.copy_from_slice(&word.to_le_bytes()));
    }
    // 1. Pack. What does not shrink by a byte is refused, but for pages that are not packed at all.
    let room = if case.codec == Codec::None { PAGE_SIZE } else { PAGE_SIZE - 1 };
    let mut packed = vec![[0; PAGE_SIZE]; pages as usize];
    let mut lengths = vec![None; pages as usize];
    let began = Instant::now();
    for ((page, packed), len) in originals.iter().zip(&mut packed).zip(&mut lengths) {
        *len = compressor.compress(page, &mut packed[..room]);
    }
    let packing = began.elapsed();
    // 2. Unpack.
    let mut back = vec![[0; PAGE_SIZE]; pages as usize];
    let mut wrong = 0;
    let began = Instant::now();
    for ((page, packed), len) in back.iter_mut().zip(&packed).zip(&lengths) {
        if let Some(len) = len {
            wrong +=
                u64::from(decompressor.decompress(case.codec.id(), &packed[..*len], page).is_err());
        }
    }
    let unpacking = began.elapsed();
    // 3. Compare.
    let came_back =
        originals.iter().zip(&back).zip(&lengths).filter(|((a, b), len)| len.is_none() || a == b);
    if wrong > 0 || came_back.count() != originals.len() {
        return Err(Failure::new("pages came back with other content than they went in with"));
    }
    Ok(sample(&lengths, packing, unpacking))
}

/// The figures of pages that were packed to so many bytes each, or refused.
fn sample(lengths: &[Option<usize>], packing: Duration, unpacking: Duration) -> Sample {
    let (pages, fit) = (lengths.len() as f64, lengths.iter().flatten().count() as f64);
    let kept: usize = lengths.iter().map(|len| len.unwrap_or(PAGE_SIZE)).sum();
    let mut figures = vec![
        (RATIO, pages * PAGE_SIZE as f64 / kept as f64),
        (REFUSED, 1.0 - fit / pages),
        (COMPRESS, packing.as_nanos() as f64 / pages),
    ];
    if fit > 0.0 {
        figures.push((DECOMPRESS, unpacking.as_nanos() as f64 / fit));
    }
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Adds how long each case took, in units of LZ4 in the same round.
fn compare_with_lz4(cases: &[Case], series: &mut [Series]) {
    for (i, case) in cases.iter().enumerate().filter(|(_, case)| case.codec != Codec::Lz4) {
        let lz4 = Case { codec: Codec::Lz4, ..*case };
        if let Some(lz4) = cases.iter().position(|other| *other == lz4) {
            let lz4 = series[lz4].clone();
            for (figure, name) in [(COMPRESS, COMPRESS_LZ4), (DECOMPRESS, DECOMPRESS_LZ4)] {
                compare(&mut series[i], &lz4, figure, name, |here, lz4| here / lz4);
            }
        }
    }
}

/// What the rows show, in sentences.
fn conclusion(cases: &[Case], rows: &[Row]) -> String {
    let figure = |codec: Codec, contents: Contents, name: &str| -> Option<Spread> {
        let at = cases.iter().position(|case| *case == Case { codec, contents })?;
        rows[at].figures.get(name).copied()
    };
    let median =
        |codec, name: &str| figure(codec, Contents::Heap, name).map(|spread| spread.median);
    let mut sentences = Vec::new();
    if let (Some(of), Some(pack), Some(unpack)) =
        (median(Codec::Lz4, RATIO), median(Codec::Lz4, COMPRESS), median(Codec::Lz4, DECOMPRESS))
    {
        sentences.push(format!(
            "A page of a heap takes LZ4 {} ns to pack, {}:1, and {} ns to unpack.",
            whole(pack),
            ratio(of),
            whole(unpack)
        ));
    }
    let mut done = vec![Codec::Lz4, Codec::None];
    for codec in cases.iter().map(|case| case.codec) {
        if done.contains(&codec) {
            continue;
        }
        done.push(codec);
        if let (Some(of), Some(lz4), Some(pack), Some(unpack)) = (
            median(codec, RATIO),
            median(Codec::Lz4, RATIO),
            median(codec, COMPRESS_LZ4),
            median(codec, DECOMPRESS_LZ4),
        ) {
            sentences.push(format!(
                "{codec}: {}:1, so {} fewer bytes, for {} times as long to pack and {} times to \
                 unpack.",
                ratio(of),
                percent(1.0 - lz4 / of),
                ratio(pack),
                ratio(unpack)
            ));
        }
    }
    if let Some(refused) = figure(Codec::Lz4, Contents::Random, COMPRESS) {
        sentences.push(format!(
            "To find out that a page is random takes LZ4 {} ns.",
            whole(refused.median)
        ));
    }
    sentences.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use clap::ValueEnum;

    #[test]
    fn every_codec_is_measured_with_each_kind_of_contents_once() {
        let args = testing::args("--codecs zstd,lz4,zstd:3 --contents zero,heap");
        let names: Vec<_> = plan(&args).iter().map(Case::to_string).collect();
        assert_eq!(names, ["zstd:3, zero", "lz4, zero", "zstd:3, heap", "lz4, heap"]);
        assert_eq!(plan(&testing::args("")).len(), 8 * Contents::value_variants().len());
    }

    #[test]
    fn pages_that_do_not_shrink_count_as_pages() {
        let ns = Duration::from_nanos;
        let figures = sample(&[Some(1024), None, Some(1024), None], ns(400), ns(100));
        assert_eq!((figures[RATIO], figures[REFUSED]), (1.6, 0.5));
        assert_eq!((figures[COMPRESS], figures[DECOMPRESS]), (100.0, 50.0));
        assert!(!sample(&[None], ns(1), ns(0)).contains_key(DECOMPRESS));
    }

    #[test]
    fn the_conclusion_tells_what_was_measured() {
        let case = |codec, contents| Case { codec, contents };
        let cases = [
            case(Codec::Lz4, Contents::Heap),
            case(Codec::Zstd(3), Contents::Heap),
            case(Codec::Lz4, Contents::Random),
        ];
        let row = |case: &Case, figures: &[(&str, f64)]| {
            let sample = testing::sample(figures.iter().copied());
            Row::new(&case.codec.to_string(), &[], None, &vec![sample])
        };
        let rows = [
            row(&cases[0], &[(RATIO, 2.5), (COMPRESS, 5000.0), (DECOMPRESS, 1500.0)]),
            row(&cases[1], &[(RATIO, 3.125), (COMPRESS_LZ4, 3.0), (DECOMPRESS_LZ4, 2.0)]),
            row(&cases[2], &[(COMPRESS, 700.0)]),
        ];
        assert_eq!(
            conclusion(&cases, &rows),
            "A page of a heap takes LZ4 5,000 ns to pack, 2.50:1, and 1,500 ns to unpack. zstd:3: \
             3.12:1, so 20.0 % fewer bytes, for 3.00 times as long to pack and 2.00 times to \
             unpack. To find out that a page is random takes LZ4 700 ns."
        );
        assert_eq!(conclusion(&[], &[]), "");
    }
}
