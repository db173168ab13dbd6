//! Writes the manual pages, the completions of shells and what C compilers look for into a
//! directory: they are installed and this program is not.
//!
//! usage: overspill-pages DIRECTORY
//!
//! They come from the command's own definitions, from the table of settings, and from the header of
//! the C interface. What is written lies as it does below a prefix: `share/man/man1/overspill.1`.

#![forbid(unsafe_code)]

mod completions;
mod definition;
mod interface;
mod pages;
mod roff;
mod texts;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, io};

fn write(directory: &Path) -> io::Result<()> {
    let command = definition::shown();
    let pages = pages::all(&command)?;
    let others = completions::all(command).into_iter().chain(interface::files());
    for (path, text) in pages.into_iter().chain(others) {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().expect("it lies below the directory"))?;
        fs::write(path, text)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some(directory) = env::args_os().nth(1) else {
        eprintln!("usage: overspill-pages DIRECTORY");
        return ExitCode::from(2);
    };
    match write(Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overspill-pages: {}: {error}", Path::new(&directory).display());
            ExitCode::FAILURE
        }
    }
}
