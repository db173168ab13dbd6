//! `overspill-bench codecs` from the outside: what it prints, and what it counts.

mod common;

use common::{bench, json, words};
use serde_json::Value;

const NAME: &str = "codecs";
const SMALL: &str = "--size 256K --rounds 1";

#[test]
fn json_has_a_row_for_each_codec_and_kind_of_contents() {
    let outcome = bench(NAME, &format!("{SMALL} --json"));
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    let value = json(&outcome);
    assert_eq!(
        (&value["bench"], &value["settings"]["size_bytes"]),
        (&NAME.into(), &(256 << 10).into())
    );
    let rows = value["rows"].as_array().unwrap();
    let figure = |contents: &str, step: &str, name: &str| {
        let row = rows.iter().find(|row| row["contents"] == contents && row["step"] == step);
        row.unwrap_or_else(|| panic!("{step} {contents}"))["figures"][name].as_f64()
    };
    let codecs = ["none", "lz4", "zstd:-1", "zstd:1", "zstd:3", "zstd:6", "zstd:12", "zstd:19"];
    assert_eq!(rows.len(), 3 * codecs.len());
    for codec in codecs {
        for contents in ["heap", "random", "zero"] {
            assert!(
                figure(contents, codec, "compress_ns_per_page") > Some(0.0),
                "{codec} {contents}"
            );
        }
    }
    let ratio = |contents, codec| figure(contents, codec, "ratio").unwrap();
    let heap = ["none", "lz4", "zstd:-1", "zstd:3", "zstd:19"].map(|codec| ratio("heap", codec));
    assert!(
        heap.is_sorted_by(|a, b| a < b) && heap[0] == 1.0 && (2.2..2.8).contains(&heap[1]),
        "{heap:?}"
    );
    assert!(ratio("zero", "lz4") > 100.0 && ratio("random", "zstd:19") == 1.0);
    assert_eq!(figure("random", "lz4", "refused_ratio"), Some(1.0));
    assert_eq!(
        figure("random", "lz4", "decompress_ns_per_page"),
        None::<f64>,
        "nothing was packed"
    );
    assert!(
        rows.iter().all(|row| row["figures"]["ratio_min"] == Value::Null),
        "one round has no spread"
    );
}

#[test]
fn without_json_it_prints_a_table_and_what_that_shows() {
    let outcome = bench(NAME, &format!("{SMALL} --codecs lz4,zstd --contents heap,random"));
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{}", outcome.stdout);
    let lines_of = |contents: &str| {
        outcome.stdout.lines().filter(|l| l.trim_start().starts_with(contents)).count()
    };
    assert_eq!((lines_of("heap  "), lines_of("random  ")), (2, 2), "{}", outcome.stdout);
    for said in ["heap: zstd:3 times LZ4's time to unpack ", "random: lz4 ns to see "] {
        assert!(words(&outcome).contains(said), "{said}: {}", outcome.stdout);
    }
}
