//! What tests of pools share.

use overspill::config::Config;
use overspill::{Error, Pool};

/// A pool with some settings more; `None`, loudly, where the kernel gives this user no userfaultfd.
pub fn pool(mut config: Config, settings: &str) -> Option<Pool> {
    config.apply_with_baselines(settings).unwrap();
    match Pool::new(config) {
        Ok(pool) => Some(pool),
        Err(error @ Error::NoUserfaultfd { .. }) => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
