//! Commands of util-linux, and the kernel's table of swap.

use crate::measure::Failure;
use overspill::units::PAGE_SIZE;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A path as an argument of a command.
pub fn path(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::new(format!("'{}' is not UTF-8: name another place", path.display()))
    })
}

pub fn command(name: &str, args: &[&str]) -> Result<(), Failure> {
    let output = Command::new(name).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        Failure::new(format!("{name}(8) cannot be started ({error}): install it"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{name}(8) says: {}", said.trim())))
}

/// The files of /proc/swaps, with their pages in use. Spaces and what else divides fields are
/// written there as octal numbers.
pub fn swaps(table: &str) -> impl Iterator<Item = (PathBuf, u64)> {
    table.lines().skip(1).filter_map(|line| {
        // NAME TYPE SIZE USED PRIORITY, in KiB.
        let mut fields = line.split_whitespace();
        let path =
            [" ", "\t", "\n", "\\"].iter().fold(fields.next()?.to_owned(), |path, special| {
                path.replace(&format!("\\{:03o}", special.as_bytes()[0]), special)
            });
        let used_kib: u64 = fields.nth(2)?.parse().ok()?;
        Some((PathBuf::from(path), used_kib * 1024 / PAGE_SIZE as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_files_are_listed_with_their_use() {
        let table = "Filename Type Size Used Priority\n/dev/zram0 partition 4096 8 \
                     -2\n/var/my\\040tmp/.x.swap file 1024 512 5\n";
        let expected = [("/dev/zram0", 2), ("/var/my tmp/.x.swap", 128)]
            .map(|(path, used)| (PathBuf::from(path), used));
        assert_eq!(swaps(table).collect::<Vec<_>>(), expected);
        assert_eq!(swaps("").count(), 0);
    }

    #[test]
    fn a_command_that_fails_is_quoted() {
        assert!(command("no-such-command", &[]).unwrap_err().to_string().contains("install it"));
        let failure = command("ls", &["/no/such/directory"]).unwrap_err().to_string();
        assert!(
            failure.starts_with("ls(8) says: ls") && failure.contains("/no/such/directory"),
            "{failure}"
        );
    }
}
