//! What was found of a command, kept for its next run: a file a command, named by its words.

use super::report::Report;
use crate::failure::Failure;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most bytes of a profile that are read.
const BYTES_MAX: u64 = 1 << 20;

/// Where profiles are: `overspill/profiles` of `$XDG_STATE_HOME`, or of `~/.local/state`.
#[derive(Debug)]
pub struct Profiles {
    directory: PathBuf,
}

impl Profiles {
    /// Those of this user; `None` where neither variable says where.
    pub fn find(variable: impl Fn(&str) -> Option<OsString>) -> Option<Profiles> {
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || Some(absolute("HOME")?.join(".local/state"));
        let state = absolute("XDG_STATE_HOME").or_else(home)?;
        Some(Profiles { directory: state.join("overspill/profiles") })
    }

    /// The file of a command.
    fn path(&self, command: &[OsString]) -> PathBuf {
        self.directory.join(format!("{:016x}.json", hash(command)))
    }

    /// Keeps what was found of a command; where.
    pub fn save(&self, command: &[OsString], report: &Report) -> Result<PathBuf, Failure> {
        let path = self.path(command);
        let failing = |error: std::io::Error| {
            Failure::own(format!("the profile cannot be saved to '{}': {error}", path.display()))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory).map_err(failing)?;
        let text = serde_json::to_string(report).expect("figures and names are JSON") + "\n";
        // Another run of the command may read it meanwhile.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| {
                let _ = fs::remove_file(&new);
                failing(error)
            })?;
        Ok(path)
    }

    /// What is kept of a command.
    pub fn load(&self, command: &[OsString]) -> Result<Report, Failure> {
        let path = self.path(command);
        let unusable = |why: String| {
            let (path, words) = (path.display(), words(command).join(" "));
            Failure::own(format!(
                "the profile '{path}' cannot be used ({why}): make it anew by `overspill size -- \
                 {words}`"
            ))
        };
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(missing(command, &format!("in '{}'", self.directory.display())));
            }
            Err(error) => return Err(unusable(error.to_string())),
        };
        let report: Report =
            serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
        match report.command == words(command) {
            true => Ok(report),
            false => Err(unusable("it is another command's".to_owned())),
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// That nothing is known of a command yet.
pub fn missing(command: &[OsString], place: &str) -> Failure {
    let words = words(command).join(" ");
    Failure::own(format!(
        "--memory auto needs a profile of this command, and there is none {place}: make it by \
         `overspill size -- {words}`"
    ))
}

/// The words of a command as text.
pub fn words(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// FNV-1a, with an end after each word.
fn hash(command: &[OsString]) -> u64 {
    let bytes = |word: &OsString| word.as_os_str().as_bytes().iter().copied().chain([0]).collect();
    let all: Vec<u8> = command.iter().flat_map(|word| -> Vec<u8> { bytes(word) }).collect();
    all.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::looped;
    use super::*;

    fn profiles(name: &str) -> (Profiles, PathBuf) {
        let root = std::env::temp_dir().join(format!("overspill-{name}-{}", std::process::id()));
        let root_name = root.clone().into_os_string();
        let of = move |name: &str| (name == "XDG_STATE_HOME").then(|| root_name.clone());
        (Profiles::find(of).unwrap(), root)
    }

    fn command(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_profile_is_found_by_the_words_of_its_command() {
        let (profiles, root) = profiles("profiles");
        let sort = command(&["sort", "<b>"]);
        let other = command(&["sort<", "b>"]);
        let told = |command: &[OsString]| profiles.load(command).unwrap_err().sentence;
        assert!(told(&sort).contains("make it by `overspill size -- sort <b>`"), "{}", told(&sort));
        let path = profiles.save(&sort, &looped()).unwrap();
        assert_eq!(profiles.load(&sort).unwrap(), looped());
        assert_ne!(profiles.path(&other), path);
        fs::copy(&path, profiles.path(&other)).unwrap();
        assert!(told(&other).contains("it is another command's"));
        fs::write(&path, "{").unwrap();
        assert!(told(&sort).contains("make it anew"), "{}", told(&sort));
        assert_eq!(fs::read_dir(&profiles.directory).unwrap().count(), 2, "nothing else is left");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn it_is_kept_where_the_state_of_programs_is() {
        let of = |home: Option<&str>| {
            Profiles::find(|name| (name == "HOME").then(|| home.map(OsString::from)).flatten())
        };
        let place = of(Some("/home/x")).unwrap().directory;
        assert_eq!(place, Path::new("/home/x/.local/state/overspill/profiles"));
        assert!(of(None).is_none() && of(Some("x")).is_none());
    }
}
