//! What benches plan alike.

use clap::ValueEnum;

/// What was asked for, each once and in the order of its type; all there is if nothing was.
pub fn chosen<T: ValueEnum + Ord>(asked: &[T]) -> Vec<T> {
    let mut chosen = if asked.is_empty() { T::value_variants().to_vec() } else { asked.to_vec() };
    chosen.sort();
    chosen.dedup();
    chosen
}
