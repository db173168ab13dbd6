//! The preload library: where it is, and how the dynamic loader is told.

use crate::failure::Failure;
use overspill_os::executable::elf::{Elf, TYPE_DYN};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::{env, fs};

const FILE_NAME: &str = "liboverspill_preload.so";

/// Whether this process is of a job itself: then its faults are for the library to serve.
pub fn is_here() -> bool {
    std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains(FILE_NAME))
}

/// Where it is looked for, seen from the directory of the executable: a build directory or an
/// unpacked archive, then the installed layouts of `bin/` beside `lib/`.
const PLACES: [&str; 3] = ["", "../lib/overspill", "../lib"];

/// The library, found and looked at.
#[derive(Clone, Debug)]
pub struct Library {
    /// Absolute path.
    pub path: PathBuf,
    /// Its header: programs must be of the same kind.
    pub elf: Elf,
}

/// Finds the library for this command.
pub fn find_for_this() -> Result<Library, Failure> {
    let executable =
        env::current_exe().map_err(|error| Failure::own(format!("cannot find itself: {error}")))?;
    find(env::var_os("OVERSPILL_PRELOAD"), &executable)
}

/// Finds the library: `named` (OVERSPILL_PRELOAD) if given, else by the place of the executable.
fn find(named: Option<OsString>, executable: &Path) -> Result<Library, Failure> {
    let path = match named.filter(|name| !name.is_empty()) {
        Some(named) => fs::canonicalize(&named).map_err(|error| {
            let named = Path::new(&named).display();
            Failure::own(format!(
                "cannot use OVERSPILL_PRELOAD={named} ({error}): name {FILE_NAME}"
            ))
        })?,
        None => {
            let home = executable.parent().unwrap_or(Path::new("/"));
            let there = |place| fs::canonicalize(home.join(place).join(FILE_NAME)).ok();
            PLACES.iter().find_map(there).ok_or_else(|| {
                let home = home.display();
                Failure::own(format!(
                    "{FILE_NAME} is missing: build it in the sources of this version by `cargo \
                     build --release -p overspill-preload`, then install it into {home} or \
                     {home}/../lib/overspill, or set OVERSPILL_PRELOAD to its path"
                ))
            })?
        }
    };
    if path.as_os_str().as_bytes().iter().any(|byte| is_separator(*byte)) {
        let path = path.display();
        return Err(Failure::own(format!(
            "'{path}' cannot be preloaded: LD_PRELOAD takes no path with a space or a colon, so \
             install it elsewhere"
        )));
    }
    match Elf::of_file(&path) {
        Ok(Some(elf)) if elf.kind == TYPE_DYN => Ok(Library { path, elf }),
        Ok(_) => Err(Failure::own(format!(
            "'{}' is not a shared library: name {FILE_NAME}",
            path.display()
        ))),
        Err(error) => Err(Failure::own(format!(
            "cannot read the preload library '{}': {error}",
            path.display()
        ))),
    }
}

/// The value of LD_PRELOAD: this library first, then what was there, less any overspill library of
/// an outer run.
pub fn ld_preload(library: &Path, previous: Option<&OsStr>) -> OsString {
    let others = previous.unwrap_or_default().as_bytes().split(|byte| is_separator(*byte));
    let others = others.filter(|name| !name.is_empty()).filter(|name| {
        let name = Path::new(OsStr::from_bytes(name));
        name != library && name.file_name() != Some(OsStr::new(FILE_NAME))
    });
    let mut value = library.as_os_str().as_bytes().to_vec();
    for name in others {
        value.push(b':');
        value.extend_from_slice(name);
    }
    OsString::from_vec(value)
}

/// ld.so(8): the names in LD_PRELOAD are separated by spaces or colons.
fn is_separator(byte: u8) -> bool {
    byte == b':' || byte == b' '
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let library = Path::new("/new/liboverspill_preload.so");
        let value = |previous: &str| ld_preload(library, Some(OsStr::new(previous)));
        assert_eq!(ld_preload(library, None), "/new/liboverspill_preload.so");
        assert_eq!(value("/a.so b.so"), "/new/liboverspill_preload.so:/a.so:b.so");
        assert_eq!(
            value("/old/liboverspill_preload.so:/a.so::"),
            "/new/liboverspill_preload.so:/a.so"
        );
        assert_eq!(value("/new/liboverspill_preload.so"), "/new/liboverspill_preload.so");
        let renamed = Path::new("/new/other.so");
        assert_eq!(
            ld_preload(renamed, Some(OsStr::new("/new/other.so:/b.so"))),
            "/new/other.so:/b.so"
        );
    }

    #[test]
    fn it_is_found_beside_the_executable_and_in_lib() {
        let root = std::env::temp_dir().join(format!("overspill-find-{}", std::process::id()));
        let executable = root.join("bin/overspill");
        // Any position-independent program passes for a shared object: both are ET_DYN.
        let shared_object = std::env::current_exe().unwrap();
        for place in PLACES {
            let dir = root.join("bin").join(place);
            fs::create_dir_all(root.join("bin")).unwrap();
            fs::create_dir_all(&dir).unwrap();
            let file = dir.join(FILE_NAME);
            assert!(find(None, &executable).unwrap_err().sentence.contains("is missing"));
            fs::copy(&shared_object, &file).unwrap();
            assert_eq!(find(None, &executable).unwrap().path, file.canonicalize().unwrap());
            assert_eq!(
                find(Some(file.clone().into()), Path::new("/x/y")).unwrap().path,
                file.canonicalize().unwrap()
            );
            fs::remove_file(file).unwrap();
        }
        fs::write(root.join("bin").join(FILE_NAME), "no library").unwrap();
        assert!(find(None, &executable).unwrap_err().sentence.contains("not a shared library"));
        let spaced = root.join("a b.so");
        fs::copy(&shared_object, &spaced).unwrap();
        assert!(
            find(Some(spaced.into()), &executable)
                .unwrap_err()
                .sentence
                .contains("with a space or a colon")
        );
        assert!(
            find(Some("/no/such.so".into()), &executable)
                .unwrap_err()
                .sentence
                .contains("OVERSPILL_PRELOAD")
        );
        fs::remove_dir_all(root).unwrap();
    }
}
