//! Where what is told goes.

use crate::failure::Failure;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Writes to the standard error. As in [`crate::failure::say`]: one that is closed or full is no
/// reason to stop.
pub fn tell(text: &[u8]) {
    let _ = io::stderr().write_all(text);
}

/// A file that the user has named, opened before the program starts.
#[derive(Debug)]
pub struct OutFile {
    /// What is said where it cannot be written, before its name.
    what: &'static str,
    name: String,
    /// None for standard error.
    file: Option<File>,
}

impl OutFile {
    pub fn statistics(path: &Path) -> Result<OutFile, Failure> {
        OutFile::create("cannot write statistics to", path)
    }

    pub fn report(path: &Path) -> Result<OutFile, Failure> {
        OutFile::create("cannot write the report to", path)
    }

    fn create(what: &'static str, path: &Path) -> Result<OutFile, Failure> {
        let name = path.display().to_string();
        // Opening /dev/stderr would fail where it is a socket, and truncate where it is a file.
        if path == Path::new("/dev/stderr") {
            return Ok(OutFile { what, name, file: None });
        }
        match File::create(path) {
            Ok(file) => Ok(OutFile { what, name, file: Some(file) }),
            Err(error) => Err(unwritable(what, &name, &error)),
        }
    }

    pub fn write_json(self, value: &impl Serialize) -> Result<(), Failure> {
        let text =
            serde_json::to_string_pretty(value).expect("counters are numbers and names") + "\n";
        self.write(text.as_bytes())
    }

    pub fn write(self, text: &[u8]) -> Result<(), Failure> {
        let OutFile { what, name, file } = self;
        file.map_or_else(|| io::stderr().write_all(text), |mut file| file.write_all(text))
            .map_err(|error| unwritable(what, &name, &error))
    }
}

fn unwritable(what: &str, name: &str, error: &io::Error) -> Failure {
    Failure::own(format!(
        "{what} '{name}' ({error}): name a file that can be written, or /dev/stderr"
    ))
}
