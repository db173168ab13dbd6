//! Sealing pages: without the key nobody can read them, or change them unnoticed.
//!
//! A [`Key`] is random and lies in memory for secrets (`secret`), expanded for its cipher:
//! AES-256-GCM where the processor has instructions for it, else ChaCha20-Poly1305. It is never
//! written anywhere. Pages are sealed and opened in place, without allocating.
//!
//! **No nonce twice.** Two pages that are sealed with one key and one nonce tell what they differ
//! in, and let pages be forged. So the nonce is the *number* of the page among all that were sealed
//! with its key, and who seals cannot choose it. The counter lies in memory that a process shares
//! with the children of its forks, as they have its key, too: a number is taken by one atomic
//! addition, whichever of them takes it. So a child opens what it inherited, and neither it nor its
//! parent uses the other's numbers, nor one of its own again. What another process has made, that
//! did not descend by forks alone, has another key. 64 bits of pages are never used up. Who stores
//! the state of a whole machine and goes on from it twice uses numbers twice.
//!
//! Beside the page its *place* is authenticated: two words of the caller's, such as the device and
//! the slot. So a page that lies elsewhere than where it was sealed for does not open, nor does one
//! that lay there before, since the number is another.

use crate::secret::Secret;
use crate::table::SharedCells;
use crate::units::Errno;
use ring::aead::{self, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// What opens a page: its number, and the two words of its tag. The number is never 0.
pub type Seal = [u64; 3];

/// A key, and the numbers of the pages that were sealed with it.
pub struct Key {
    key: Secret<LessSafeKey>,
    numbers: SharedCells,
}

impl Key {
    /// A random key.
    ///
    /// # Errors
    /// When there is no memory, or no randomness.
    pub fn random() -> Result<Key, Errno> {
        let has_aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        Key::random_for(if has_aes { &AES_256_GCM } else { &CHACHA20_POLY1305 })
    }

    fn random_for(cipher: &'static aead::Algorithm) -> Result<Key, Errno> {
        let numbers = SharedCells::inherited(1)?;
        let key = Secret::new(|| {
            let mut bytes = [0; 32];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
            let key = UnboundKey::new(cipher, &bytes).expect("both ciphers take 32 bytes");
            Ok(LessSafeKey::new(key))
        })?;
        Ok(Key { key, numbers })
    }

    /// Seals a page in place for a place.
    pub fn seal(&self, place: [u64; 2], page: &mut [u8]) -> Seal {
        let number = self.numbers[0].fetch_add(1, Relaxed) + 1;
        let tag = self.key.seal_in_place_separate_tag(nonce(number), beside(place), page);
        let tag = u128::from_le_bytes(
            tag.expect("a page is not too long").as_ref().try_into().expect("a tag has 16 bytes"),
        );
        [number, tag as u64, (tag >> 64) as u64]
    }

    /// Opens a page in place; `false` if it is not what was sealed for this place. Its bytes are
    /// gone then.
    #[must_use]
    pub fn open(&self, place: [u64; 2], [number, low, high]: Seal, page: &mut [u8]) -> bool {
        let tag = u128::from(high) << 64 | u128::from(low);
        let tag = aead::Tag::from(tag.to_le_bytes());
        let opened =
            self.key.open_in_place_separate_tag(nonce(number), beside(place), tag, page, 0..);
        let is_authentic = opened.is_ok();
        if !is_authentic {
            page.fill(0);
        }
        is_authentic
    }

    /// In a child of a fork: goes on with the key.
    pub fn keep_in_child(&self) {
        self.key.keep_in_child();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; aead::NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn beside([first, second]: [u64; 2]) -> Aad<[u8; 16]> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    Aad::from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PAGE_SIZE;
    use std::collections::BTreeSet;

    /// Keys for both ciphers, whichever this machine takes.
    fn keys() -> [Key; 2] {
        [&AES_256_GCM, &CHACHA20_POLY1305].map(|cipher| Key::random_for(cipher).unwrap())
    }

    #[test]
    fn a_page_opens_as_it_was_for_its_own_place_and_seal_alone() {
        for key in keys() {
            let (plain, mut page) = ([0x5a; PAGE_SIZE], [0x5a; PAGE_SIZE]);
            let seal = key.seal([3, 7], &mut page);
            let sealed = page;
            assert!(sealed.windows(8).all(|bytes| bytes != [0x5a; 8]), "plain text is left");
            assert!(key.open([3, 7], seal, &mut page) && page == plain);
            // The same page once more is another text.
            let again = key.seal([3, 7], &mut page);
            assert!(page != sealed && again[0] != seal[0]);
            let [number, low, high] = seal;
            for (place, wrong) in [
                ([3, 8], seal),
                ([4, 7], seal),
                ([3, 7], again),
                ([3, 7], [number + 1, low, high]),
                ([3, 7], [number, low ^ 1, high]),
                ([3, 7], [number, low, high ^ 1 << 63]),
                ([3, 7], [0; 3]),
            ] {
                page = sealed;
                assert!(!key.open(place, wrong, &mut page), "{place:?} {wrong:?}");
                assert_eq!(page, [0; PAGE_SIZE], "none of it is left");
            }
            page = sealed;
            assert!(!Key::random().unwrap().open([3, 7], seal, &mut page), "another key");
        }
    }

    #[test]
    fn each_byte_that_is_changed_is_found() {
        for key in keys() {
            let mut sealed = [7; PAGE_SIZE];
            let seal = key.seal([0, 0], &mut sealed);
            for at in 0..PAGE_SIZE {
                let mut page = sealed;
                page[at] ^= 1 << (at % 8);
                assert!(!key.open([0, 0], seal, &mut page), "byte {at}");
            }
        }
    }

    /// Parent and child seal at once, several threads of the parent: no number twice, and each
    /// opens what the other has sealed.
    #[test]
    fn numbers_do_not_repeat_over_threads_and_forks() {
        const EACH: usize = 500;
        let key = Key::random().unwrap();
        let (seals, pages) = (
            SharedCells::inherited(EACH * 3).unwrap(),
            SharedCells::inherited(EACH * PAGE_SIZE / 8).unwrap(),
        );
        let mut before = [9; PAGE_SIZE];
        let inherited = key.seal([1, 1], &mut before);
        // SAFETY: the child calls nothing that allocates or takes a lock, and ends by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            key.keep_in_child();
            let opens = key.open([1, 1], inherited, &mut before) && before == [9; PAGE_SIZE];
            for i in 0..EACH {
                let mut page = [i as u8; PAGE_SIZE];
                let seal = key.seal([2, i as u64], &mut page);
                let to = pages[i * PAGE_SIZE / 8..].iter();
                to.zip(page.as_chunks().0).for_each(|(cell, word)| {
                    cell.store(u64::from_le_bytes(*word), Relaxed);
                });
                seals[i * 3..].iter().zip(seal).for_each(|(cell, word)| cell.store(word, Relaxed));
            }
            // SAFETY: it ends here.
            unsafe { libc::_exit(i32::from(!opens)) };
        }
        let mut numbers: Vec<u64> = std::thread::scope(|scope| {
            let seal_some = || -> Vec<u64> {
                (0..EACH as u64).map(|i| key.seal([3, i], &mut [1; PAGE_SIZE])[0]).collect()
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(seal_some)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let mut status = -1;
        // SAFETY: the status is alive.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child opens what it inherited");
        for i in 0..EACH {
            let seal: Seal = std::array::from_fn(|word| seals[i * 3 + word].load(Relaxed));
            let mut page = [0; PAGE_SIZE];
            let words = pages[i * PAGE_SIZE / 8..].iter();
            page.as_chunks_mut().0.iter_mut().zip(words).for_each(|(word, cell)| {
                *word = cell.load(Relaxed).to_le_bytes();
            });
            assert!(key.open([2, i as u64], seal, &mut page) && page == [i as u8; PAGE_SIZE]);
            numbers.push(seal[0]);
        }
        numbers.push(inherited[0]);
        let all = numbers.len();
        assert_eq!(numbers.into_iter().collect::<BTreeSet<_>>().len(), all);
    }
}
