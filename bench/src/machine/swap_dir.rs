//! The directory of swap files, and whether there is room for what is to be measured.

use crate::measure::*;
use overspill::units::Bytes;
use overspill_os::io::{self, PathKind};
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The directory unless `$TMPDIR` names another, as with `overspill run`.
const DIRECTORY: &str = "/var/tmp";

/// A directory on a disk, and perhaps the file in it that is the engine's device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapDir {
    pub dir: PathBuf,
    pub file: Option<PathBuf>,
}

impl SwapDir {
    /// What `--device` names, or the default.
    pub fn find(device: Option<&Path>) -> Result<SwapDir, Failure> {
        let tmpdir = |dir: OsString| (!dir.is_empty()).then(|| PathBuf::from(dir));
        let default =
            || std::env::var_os("TMPDIR").and_then(tmpdir).unwrap_or_else(|| DIRECTORY.into());
        let device = device.map_or_else(default, Path::to_owned);
        let (dir, file) = match io::kind(&device) {
            Ok(PathKind::Directory) => (device.as_path(), None),
            Ok(PathKind::File) | Err(overspill_os::Errno::NOENT) => {
                let dir =
                    device.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
                (dir, device.file_name())
            }
            Ok(PathKind::BlockDevice | PathKind::Other) => {
                fail!("'{}' is no file: name one, or a directory", device.display());
            }
            Err(errno) => {
                fail!("'{}' cannot be looked at: {errno}", device.display());
            }
        };
        let usable = || {
            let dir = dir.canonicalize().map_err(Failure::of)?;
            if io::space(&dir).map_err(Failure::of)?.in_memory {
                fail!("it is in memory");
            }
            Ok(dir)
        };
        match usable() {
            Ok(dir) => Ok(SwapDir { file: file.map(|file| dir.join(file)), dir }),
            Err(error) => {
                let dir = dir.display();
                fail!("no file can be made in '{dir}' ({error}): name another place with --device")
            }
        }
    }

    /// Whether there is so much room on its disk; `option` names another.
    pub fn has_room(&self, size: Bytes, needed: u64, option: &str) -> Result<(), Failure> {
        let space = io::space(&self.dir).failing(format_args!("'{self}' cannot be looked at"))?;
        if needed > space.free_bytes {
            let (needed, free, dir) = (Bytes(needed), Bytes(space.free_bytes), self.dir.display());
            fail!(
                "a --size of {size} needs {needed} on the disk of '{dir}', and it has {free}: give \
                 a smaller --size, or another {option}"
            );
        }
        Ok(())
    }
}

/// Whether there is so much memory for a `--size`.
pub fn memory_for(size: Bytes, needed: u64) -> Result<(), Failure> {
    let available = host::available_bytes();
    if needed > available {
        let (needed, available) = (Bytes(needed), Bytes(available));
        fail!(
            "a --size of {size} needs {needed} of memory and {available} is available: give a \
             smaller --size"
        );
    }
    Ok(())
}

impl fmt::Display for SwapDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.as_ref().unwrap_or(&self.dir).display().fmt(f)
    }
}

/// Makes a file, for this user only, that is to be removed: not one that is there already, which
/// could be a link to anything in a directory that others may write to.
pub fn make(file: &Path) -> Result<File, Failure> {
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(file);
    made.failing(format_args!("'{}' cannot be made", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_a_file_and_a_file_that_is_to_be_made_can_be_named() {
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        let dir = program.parent().unwrap().to_owned();
        let find = |path: &Path| SwapDir::find(Some(path)).unwrap();
        assert_eq!(find(&dir), SwapDir { dir: dir.clone(), file: None });
        for file in [program, dir.join("absent")] {
            assert_eq!(find(&file), SwapDir { dir: dir.clone(), file: Some(file.clone()) });
            assert_eq!(find(&file).to_string(), file.display().to_string());
        }
        let refusal = |path: &str| SwapDir::find(Some(Path::new(path))).unwrap_err().to_string();
        assert!(refusal("/dev/null").ends_with("name one, or a directory"));
        let absent = refusal("/no/such/directory/file");
        assert!(absent.contains("no file can be made in '/no/such/directory'"), "{absent}");
        let has_room = |needed| find(&dir).has_room(Bytes(1), needed, "--dir");
        assert!(has_room(0).is_ok() && has_room(u64::MAX).is_err());
    }
}
