//! What programs read: lines to sort, and a source to compile. Made in sequence from a fixed seed,
//! the same each time.

use crate::machine::place::make;
use crate::measure::{Failing, Failure};
use overspill_bench::contents::Random;
use std::io::{BufWriter, Write};
use std::path::Path;

/// What a unit of the source takes of the compiler's memory, about (GCC 12, without optimisation).
const SOURCE_UNIT_BYTES: u64 = 160 << 10;
/// What the compiler takes without any.
const COMPILER_BYTES: u64 = 24 << 20;
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

/// Writes a source in C++ that a compiler takes about so much memory for.
pub fn source(path: &Path, bytes: u64) -> Result<(), Failure> {
    const HEAD: &str = "\
template <int A, int B> struct Mix {
    int x[4];
    template <class T> T fold(T seed) const {
        T r = seed;
        for (int i = 0; i < 4; ++i) {
            r = r * T(A) + T(x[i] ^ B);
            if (r > T(1000)) r = r / T(A + 1);
        }
        return r;
    }
    template <class F> int each(F f) const {
        int s = 0;
        for (int v : x) s += f(v + A);
        return s;
    }
};
";
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

fn written(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<std::fs::File>) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(1 << 20, make(path)?);
    let done = write(&mut out).and_then(|()| out.flush());
    done.failing(format_args!("'{}' cannot be written", path.display()))
}
