//! What programs read: lines to sort, values to keep, sources to compile, a query. Made in sequence
//! from a fixed seed, the same each time.

use crate::machine::*;
use crate::measure::*;
use overspill_bench::contents::{Contents, Random};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

/// What a unit of the source takes of the compiler's memory, about (GCC 12, without optimisation).
const SOURCE_UNIT_BYTES: u64 = 160 << 10;
/// What the compiler takes without any.
const COMPILER_BYTES: u64 = 24 << 20;
/// Sources that make(1) has, and how many it compiles at once.
const SOURCES: u64 = 6;
const AT_ONCE: u64 = 4;
/// Rows that a database sorts; what it has of each besides the text, about; and the text of one
/// md5().
const ROWS: u64 = 600_000;
const ROW_BYTES: u64 = 60;
const SUM_BYTES: u64 = 32;
/// Bytes of a value of a redis-server: four to a page, with what the allocator and the server have
/// beside it; and what a key with its value takes of the server's memory, about.
const VALUE_BYTES: usize = 992;
const KEY_BYTES: u64 = 1120;
/// What a source begins with.
const HEAD: &str = include_str!("mix.hpp");
/// Words of a line to sort.
const WORDS: &str = "\
    accepted account backend cache client closed commit connection deadline delivery \
    error exceeded frontend gateway handler index latency message network opened \
    partition payload queue rejected replica request retry session snapshot storage \
    timeout worker";

/// Writes records of a log in random order, of about 1 KiB each: a key, and words that LZ4 packs
/// about 2.5:1.
pub fn lines(path: &Path, bytes: u64) -> Result<(), Failure> {
    written(path, |out| {
        let words: Vec<&str> = WORDS.split(' ').collect();
        let (mut random, mut line) = (Random::new(1), String::new());
        let mut done = 0;
        while done < bytes {
            line.clear();
            line += &format!("{:016x} 2024-07-19T08:14:02Z level=INFO", random.next());
            for _ in 0..16 {
                let mut word = || words[random.below(words.len() as u64) as usize];
                line +=
                    &format!(" service=\"{}\" event=\"{} {}\" status=200", word(), word(), word());
            }
            line.push('\n');
            out.write_all(line.as_bytes())?;
            done += line.len() as u64;
        }
        Ok(())
    })
}

/// Writes the values that fill so many bytes of a redis-server, each with a newline behind it.
pub fn values(path: &Path, bytes: u64) -> Result<(), Failure> {
    written(path, |out| {
        (0..(bytes / KEY_BYTES).max(1)).try_for_each(|key| {
            out.write_all(&Contents::Heap.page(key)[..VALUE_BYTES])?;
            out.write_all(b"\n")
        })
    })
}

/// Writes a source in C++ that a compiler takes about so much memory for.
pub fn source(path: &Path, bytes: u64) -> Result<(), Failure> {
    written(path, |out| {
        out.write_all(HEAD.as_bytes())?;
        for i in 0..bytes.saturating_sub(COMPILER_BYTES).div_ceil(SOURCE_UNIT_BYTES).max(1) {
            let (a, b, c) = (i % 97 + 1, i * 7 % 1001, i % 13 + 2);
            writeln!(
                out,
                "int unit_{i}(int n) {{
    Mix<{a}, {i}> m{{{{n, n + {i}, n * 2, {b}}}}};
    auto f = [n](int v) {{ return v * {c} + n; }};
    return m.each(f) + int(m.fold(long(n))) + int(m.fold(double(n)));
}}"
            )?;
        }
        Ok(())
    })
}

/// Makes a directory with sources and what make(1) is to do with them, of which it takes about so
/// much memory for four at once. It prints a checksum of what they become.
pub fn makefile(dir: &Path, bytes: u64) -> Result<(), Failure> {
    fs::create_dir(dir).failing("a directory for sources cannot be made")?;
    let numbers = || 0..SOURCES;
    for i in numbers() {
        source(&dir.join(format!("{i}.cpp")), bytes / AT_ONCE)?;
    }
    let objects: Vec<String> = numbers().map(|i| format!("{i}.o")).collect();
    written(&dir.join("Makefile"), |out| {
        writeln!(out, "all: {}\n\t@cat $^ | cksum", objects.join(" "))?;
        writeln!(out, "%.o: %.cpp\n\tg++ -std=c++17 -O0 -pipe -c $< -o $@")
    })
}

/// Writes a query that sorts rows of so many bytes in all, in the memory of the server. A fourth of
/// the text is random, and the other is that of one row in 1,000.
pub fn query(path: &Path, bytes: u64) -> Result<(), Failure> {
    let sums = (bytes / ROWS).saturating_sub(ROW_BYTES) / SUM_BYTES;
    let own: String = (2..2 + sums / 4).map(|k| format!(" || md5((i * {k})::text)")).collect();
    written(path, |out| {
        writeln!(
            out,
            "set work_mem = '{}kB';
select sum((place % 1009) * hashtext(t)::bigint) from (
  select row_number() over (order by t collate \"C\" desc) as place, t from (
    select md5(i::text){own} || repeat(md5((i % 1000)::text), {}) as t
      from generate_series(1, {ROWS}) as i) as rows) as sorted;",
            (4 * bytes / 1024).max(1 << 16),
            sums - sums / 4
        )
    })
}

fn written(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<std::fs::File>) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(1 << 20, make(path)?);
    let done = write(&mut out).and_then(|()| out.flush());
    done.failing(format_args!("'{}' cannot be written", path.display()))
}
