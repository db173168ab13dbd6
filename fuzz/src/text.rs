//! Reads any text as a size, a time, a list of settings, and the kernel's list of mappings. What is
//! accepted is written and read back as it was; what is refused, with one sentence.

use overspill::config::{Config, SETTINGS};
use overspill::units::{Bytes, parse_time};
use overspill_os::smaps::Kinds;

fn shown(config: &Config) -> String {
    let all = SETTINGS.iter().map(|one| format!("{}={}", one.name(), one.show(config)));
    all.collect::<Vec<_>>().join(",")
}

/// The target.
pub fn run(bytes: &[u8]) {
    let text = crate::text_of(bytes);
    if let Ok(size) = text.parse::<Bytes>() {
        assert_eq!(size.exact().parse(), Ok(size));
    }
    let _ = (parse_time(text), Kinds::of_text(text));
    let (mut config, mut again) = (Config::default(), Config::default());
    match config.apply_settings(text) {
        Ok(()) => {
            again.apply_settings(&shown(&config)).expect("it is what was shown");
            assert_eq!(shown(&config), shown(&again));
        }
        Err(bad) => assert!(!bad.to_string().is_empty()),
    }
}
