//! What a fuzzer runs: texts, calls and bytes that it makes up.
//!
//! Each module is a target: a function of any bytes, which panics where something is not as it
//! should be. The programs in fuzz_targets have libFuzzer call them; the tests here do it with the
//! seeds and with thousands of changes to these, so that no target goes stale.

use arbitrary::{Arbitrary, Unstructured};

macro_rules! targets {
    ($($name:ident)*) => {
        $(pub mod $name;)*

        /// The names of all targets.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        #[cfg(test)]
        mod tests {
            $(#[test]
            fn $name() {
                crate::seeds::play(stringify!($name), crate::$name::run);
            })*
        }
    };
}

targets! {
    control decompress executable frame_allocator shared_tables swap_header swap_list swap_spec text
}

#[cfg(test)]
mod seeds;

/// What the bytes stand for; `None` if they are too few.
fn made_of<'b, T: Arbitrary<'b>>(bytes: &'b [u8]) -> Option<T> {
    T::arbitrary_take_rest(Unstructured::new(bytes)).ok()
}

/// The bytes as far as they are a text.
fn text_of(bytes: &[u8]) -> &str {
    let chunk = bytes.utf8_chunks().next();
    chunk.map_or("", |chunk| chunk.valid())
}
