//! `codecs`: how far each codec packs a page, and how long it takes to pack and to unpack it.
//!
//! One thread packs pages of each kind of contents, then unpacks them ([`crate::work::codecs`]).

use crate::measure::*;
use crate::model::*;
use crate::work::codecs;
use overspill::units::Bytes;
use overspill_bench::contents::Contents;
use overspill_os::codec::Codec;
use serde_json::json;

/// Codecs that are measured unless others are named.
const CODECS: &str = "none,lz4,zstd:-1,zstd:1,zstd:3,zstd:6,zstd:12,zstd:19";

pub static LADDER: Ladder = Ladder {
    bench: "codecs",
    groups: &["contents"],
    tables: &[Table {
        title: "Pages of 4 KiB on one thread. A page that does not shrink is kept as it is, and \
                not unpacked.",
        columns: &[
            col("ratio", "ratio", ratio),
            col("kept", "refused_ratio", percent),
            wide("pack, ns a page", "compress_ns_per_page", whole),
            col("of lz4", "compress_of_lz4", ratio),
            wide("unpack, ns a page", "decompress_ns_per_page", whole),
            col("of lz4", "decompress_of_lz4", ratio),
        ],
    }],
    comparisons: &[
        compare("compress_of_lz4", Times, "compress_ns_per_page", Base::Step("lz4")),
        compare("decompress_of_lz4", Times, "decompress_ns_per_page", Base::Step("lz4")),
    ],
    verdicts: &[
        told(HEAP, &[], "compress_of_lz4", "times LZ4's time to pack"),
        told(HEAP, &[], "decompress_of_lz4", "times LZ4's time to unpack"),
        told(RANDOM, &["lz4"], "compress_ns_per_page", "ns to see that a page does not shrink"),
    ],
    charts: &[chart("How far pages are packed", "ratio", "times")],
    ..Ladder::NONE
};
const HEAP: Rows = With(&[("contents", "heap")]);
const RANDOM: Rows = With(&[("contents", "random")]);

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
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

pub fn run(args: &Args, rounds: Option<u32>) -> Result<Findings, Failure> {
    let cases = plan(args);
    let pages = args.size.pages();
    if pages == 0 {
        fail!("there is no page in a --size of {}: give 4K or more", args.size);
    }
    let findings = LADDER.measure(&cases, rounds, |case| {
        let (codec, contents) = case.what;
        threads::alone(|| codecs::measure(codec, contents, pages))
    })?;
    // There is no engine.
    Ok(findings.with(json!({ "size_bytes": args.size.0, "threads": 1, "delivery": null })))
}

/// The cases in the order of their rows.
fn plan(args: &Args) -> Vec<Case<(Codec, Contents)>> {
    let case = |contents: Contents, codec: Codec| Case {
        step: codec.to_string(),
        labels: vec![("contents", json!(contents.to_string()))],
        reference: None,
        what: (codec, contents),
    };
    let contents = once(args.contents.iter().copied());
    let codecs = once(args.codecs.iter().copied());
    let of = |contents| codecs.iter().map(move |&codec| case(contents, codec));
    contents.into_iter().flat_map(of).collect()
}
