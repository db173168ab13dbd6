//! Values that several subcommands take, as they are read.

use overspill::config::Config;
use overspill::units::Bytes;
use std::path::PathBuf;
use std::time::Duration;

/// A budget that a job can have.
pub fn parse_memory(text: &str) -> Result<Bytes, String> {
    if text == "auto" {
        return Err("'auto' is for `overspill run`, which takes what `overspill size` has found: \
                    give a size here, such as 512M"
            .to_owned());
    }
    let size: Bytes = text.parse().map_err(|bad: overspill::units::BadSize| bad.to_string())?;
    Config::check_memory(size).map_err(|error| error.to_string())?;
    Ok(size)
}

/// Seconds between two looks.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.1 to 86400".to_owned()),
    }
}

/// A file that is written to.
pub fn parse_file(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("name a file, or /dev/stderr".to_owned()),
        _ => Ok(text.into()),
    }
}
