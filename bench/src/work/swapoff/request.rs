//! What one measurement is asked for, and the memory that is written, pushed out and read again.

use super::device_rate;
use crate::measure::{Failure, pool};
use overspill_bench::contents::{Contents, WORDS};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    pub who: Who,
    /// Where swap files are made.
    pub dir: PathBuf,
    /// Bytes that are written and come back.
    pub size: u64,
    /// Bytes of the load's memory; none if there is no load.
    pub load: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Who {
    /// The engine, with settings of its pool.
    Engine {
        settings: String,
        /// The file that is its device, in place of one in the directory.
        file: Option<PathBuf>,
        /// Where the load's pages go, as the engine reads it.
        load_device: String,
    },
    Kernel,
}

impl Request {
    /// What fits in memory: all of it, and an eighth more, so that nothing is pushed out again as
    /// it comes in.
    pub fn memory(&self) -> u64 {
        /// Room for what each side keeps for its own use.
        const SPARE: u64 = 16 << 20;
        self.size + self.size / 8 + self.load + SPARE
    }

    /// What the other allocation takes: more than fits, so that all that was written goes out.
    pub fn other(&self) -> u64 {
        self.memory() + self.memory() / 4
    }

    /// The device that is emptied: room for what was written, and for what the other allocation
    /// pushes out of its own.
    pub fn device(&self) -> u64 {
        self.size + self.other()
    }

    /// The most bytes that the disk needs to have room for.
    pub fn disk(&self) -> u64 {
        self.device() + load_device(self.load) + device_rate::BYTES_MAX
    }
}

/// The size of the device that the pages of so large a load go to.
pub fn load_device(load: u64) -> u64 {
    2 * load
}

/// Writes every page of `words`; nothing in them compresses.
pub fn fill(words: &mut [u64]) {
    words
        .chunks_exact_mut(WORDS)
        .zip(0..)
        .for_each(|(page, number)| Contents::Random.fill(page, number));
}

/// Pushes everything else out: a word in each page is written.
pub fn touch(words: &mut [u64]) {
    words.chunks_exact_mut(WORDS).zip(1..).for_each(|(page, number)| page[0] = number);
}

/// Reads a word of each page, and how long that takes.
pub fn access(words: &[u64]) -> Duration {
    let began = Instant::now();
    words.iter().step_by(WORDS).for_each(|word| _ = black_box(*word));
    began.elapsed()
}

/// Checks every word that [`fill`] wrote.
pub fn verify(words: &[u64]) -> Result<(), Failure> {
    let mut expected = [0; WORDS];
    let wrong = words.chunks_exact(WORDS).zip(0..).filter(|(page, number)| {
        Contents::Random.fill(&mut expected, *number);
        *page != expected
    });
    pool::right(wrong.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_another_is_found() {
        let mut words = vec![0; 5 * WORDS];
        fill(&mut words);
        verify(&words).unwrap();
        words[3 * WORDS + 100] ^= 1;
        assert!(verify(&words).unwrap_err().to_string().starts_with("1 pages came back"));
        touch(&mut words);
        assert!(verify(&words).unwrap_err().to_string().starts_with("5 pages came back"));
    }

    #[test]
    fn devices_have_room_for_everything() {
        let request =
            Request { who: Who::Kernel, dir: PathBuf::new(), size: 64 << 20, load: 8 << 20 };
        assert!(request.memory() > (64 + 8) << 20 && request.other() > request.memory());
        assert!(request.disk() > request.device() + load_device(request.load));
    }
}
