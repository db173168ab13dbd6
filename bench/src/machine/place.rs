//! Where swap files are made.

use crate::measure::{Failing, Failure, fail};
use overspill_os::io::{self, Kind};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The directory unless `$TMPDIR` names another, as with `overspill run`.
const DIRECTORY: &str = "/var/tmp";

/// A directory on a disk, and perhaps the file in it that is the engine's device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub dir: PathBuf,
    pub file: Option<PathBuf>,
}

impl Place {
    /// What `--device` names, or the default.
    pub fn find(device: Option<&Path>) -> Result<Place, Failure> {
        let tmpdir = |dir: OsString| (!dir.is_empty()).then(|| PathBuf::from(dir));
        let default =
            || std::env::var_os("TMPDIR").and_then(tmpdir).unwrap_or_else(|| DIRECTORY.into());
        let device = device.map_or_else(default, Path::to_owned);
        let (dir, file) = match io::kind(&device) {
            Ok(Kind::Directory) => (device.as_path(), None),
            Ok(Kind::File) | Err(overspill_os::Errno::NOENT) => {
                let dir =
                    device.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
                (dir, device.file_name())
            }
            Ok(Kind::BlockDevice | Kind::Other) => {
                fail!("'{}' is no file: name one, or a directory", device.display());
            }
            Err(errno) => {
                fail!("'{}' cannot be looked at: {errno}", device.display());
            }
        };
        let unusable = |error: &dyn fmt::Display| {
            Failure::new(format!(
                "no file can be made in '{}' ({error}): name another place with --device",
                dir.display()
            ))
        };
        let dir = dir.canonicalize().map_err(|error| unusable(&error))?;
        if io::space(&dir).map_err(|errno| unusable(&errno))?.in_memory {
            return Err(unusable(&"it is in memory"));
        }
        Ok(Place { file: file.map(|file| dir.join(file)), dir })
    }

    /// Bytes that may still be written there.
    pub fn free_bytes(&self) -> Result<u64, Failure> {
        let space = io::space(&self.dir);
        space.map(|space| space.free_bytes).failing(format_args!("'{self}' cannot be looked at"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.as_ref().unwrap_or(&self.dir).display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_a_file_and_a_file_that_is_to_be_made_are_places() {
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        let dir = program.parent().unwrap().to_owned();
        let find = |path: &Path| Place::find(Some(path)).unwrap();
        assert_eq!(find(&dir), Place { dir: dir.clone(), file: None });
        for file in [program, dir.join("absent")] {
            assert_eq!(find(&file), Place { dir: dir.clone(), file: Some(file.clone()) });
            assert_eq!(find(&file).to_string(), file.display().to_string());
        }
        let refusal = |path: &str| Place::find(Some(Path::new(path))).unwrap_err().to_string();
        assert!(refusal("/dev/null").ends_with("name one, or a directory"));
        assert!(
            refusal("/no/such/directory/file")
                .contains("no file can be made in '/no/such/directory'")
        );
        assert!(find(&dir).free_bytes().unwrap() > 0);
    }
}
