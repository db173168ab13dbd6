//! Limits that the program is to have for itself, and not to share with its engine: of address
//! space (`ulimit -v`) and of data (`ulimit -d`).
//!
//! They are raised by what an engine takes, where that is allowed. The library tells the program
//! the limits as they were, and looks after them.

use crate::failure::Failure;
use overspill::config::{Config, Overhead};
use overspill::units::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limits of this process, which those that it starts inherit. Where a hard limit may
/// not be raised and leaves no room, all stays as it is.
pub fn make_room(overhead: Overhead) {
    for (resource, more) in [(Resource::As, overhead.addresses), (Resource::Data, overhead.data)] {
        let limit = getrlimit(resource);
        // The second way needs no right: then the program may raise its limit less far.
        let raised = |limit: Option<u64>| limit.map(|limit| limit.saturating_add(more.0));
        let ways = [raised(limit.maximum), limit.maximum];
        let _ = ways.into_iter().find(|most| {
            setrlimit(resource, Rlimit { current: raised(limit.current), maximum: *most }).is_ok()
        });
    }
}

/// The window of managed addresses must fit under the limit; its size.
pub fn check_window(config: &Config) -> Result<Bytes, Failure> {
    fit(config.window, config.window_bytes(), config.memory, getrlimit(Resource::As).current)
}

/// `asked` is what the user has said, and `window` is what there would be.
fn fit(
    asked: Option<Bytes>,
    window: Bytes,
    memory: Bytes,
    limit: Option<u64>,
) -> Result<Bytes, Failure> {
    /// Times the budget: below that there is nothing to be gained.
    const LEAST: u64 = 2;
    let Some(limit) = limit.map(Bytes) else { return Ok(window) };
    match asked {
        Some(asked) if limit < asked => Err(Failure::own(format!(
            "the address-space limit of {limit} is below the {asked} that managed memory \
             reserves: raise it with ulimit -v unlimited, or reserve less with --set window=SIZE"
        ))),
        None if window.0 < memory.0.saturating_mul(LEAST) => Err(Failure::own(format!(
            "the address-space limit of {limit} leaves {window} for managed memory, less than \
             twice the budget of {memory}: raise it with ulimit -v unlimited, or give a smaller \
             --memory"
        ))),
        _ => Ok(window),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::OWN;

    #[test]
    fn the_window_must_fit_in_the_address_space() {
        let memory = Bytes(1 << 30);
        let fit =
            |asked: Option<u64>, window, limit| fit(asked.map(Bytes), Bytes(window), memory, limit);
        assert_eq!(fit(None, 1 << 40, None), Ok(Bytes(1 << 40)));
        assert_eq!(fit(Some(1 << 34), 1 << 34, Some(1 << 35)), Ok(Bytes(1 << 34)));
        assert_eq!(fit(None, 1 << 34, Some(1 << 35)), Ok(Bytes(1 << 34)));
        for (asked, window, sentence) in [
            (Some(1 << 36), 1 << 36, "below the 64 GiB that managed memory reserves"),
            (None, 1 << 30, "leaves 1 GiB for managed memory, less than twice the budget of 1 GiB"),
        ] {
            let refusal = fit(asked, window, Some(1 << 35)).unwrap_err();
            assert!(
                refusal.status == OWN && refusal.sentence.contains(sentence),
                "{}",
                refusal.sentence
            );
        }
    }
}
