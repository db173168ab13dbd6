//! Templates that are filled, and what is written into files.

use crate::measure::*;
use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::Value;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A template that is filled, in which text is escaped.
pub fn fill(template: &str, values: &Value) -> Result<String, Failure> {
    let text = Environment::new().render_named_str("template.xml", template, Serde(values));
    text.failing("a template cannot be filled")
}

/// A file that the user asked for, opened before anything is measured: that it cannot be written is
/// found out in time.
pub struct OutFile {
    what: &'static str,
    path: PathBuf,
    file: File,
}

impl OutFile {
    /// What is in it stays until there is something to write.
    pub fn open(what: &'static str, path: &Path) -> Result<OutFile, Failure> {
        let mut options = File::options();
        match options.write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(OutFile { what, path: path.to_owned(), file }),
            Err(error) => Err(unwritable(what, path, &error)),
        }
    }

    pub fn write(mut self, text: &str) -> Result<(), Failure> {
        // What is no regular file, such as a pipe, has no length.
        let is_regular = self.file.metadata().is_ok_and(|file| file.is_file());
        let emptied = if is_regular { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| unwritable(self.what, &self.path, &error))
    }
}

fn unwritable(what: &str, path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::new(format!("the {what} cannot be written to '{path}': {error}; name another file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_as_it_was_until_it_is_written() {
        let path = std::env::temp_dir().join(format!("overspill-bench-out.{}", std::process::id()));
        fs::write(&path, "longer than what follows").unwrap();
        let out = OutFile::open("page", &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "longer than what follows");
        out.write("short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
        fs::remove_file(path).unwrap();
        OutFile::open("page", Path::new("/dev/null")).unwrap().write("text").unwrap();
    }
}
