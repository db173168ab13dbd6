//! Templates that are filled, and what is written into files.

use crate::measure::*;
use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::Value;
use std::path::Path;

/// A template that is filled, in which text is escaped.
pub fn fill(template: &str, values: &Value) -> Result<String, Failure> {
    let text = Environment::new().render_named_str("template.xml", template, Serde(values));
    text.failing("a template cannot be filled")
}

/// Writes what the user asked for into a file.
pub fn write_file(what: &str, path: &Path, text: &str) -> Result<(), Failure> {
    if let Err(error) = std::fs::write(path, text) {
        let path = path.display();
        fail!("the {what} cannot be written to '{path}': {error}; name another file");
    }
    Ok(())
}
