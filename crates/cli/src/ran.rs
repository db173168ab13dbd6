//! What is told of every run, whether anything of it was managed or not: what ran, for how long,
//! how it ended; and if nothing was managed, why.

use crate::outside::Seen;
use crate::report::{duration, printable};
use crate::rundir::Tree;
use overspill::units::Bytes;
use serde::Serialize;

/// The exit status of a program whose library could not begin, and has said why.
pub const COULD_NOT_BEGIN: u8 = 125;

/// A program that has run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ran {
    /// Its words.
    pub command: Vec<String>,
    pub elapsed_s: f64,
    /// Processor time of the program and the children that it waited for.
    pub cpu_s: f64,
    /// The exit status.
    pub status: u8,
    /// The budget at the end.
    pub budget_bytes: u64,
    /// Whether anything was managed.
    pub managed: bool,
    /// All of it in a sentence, with the reason if nothing was managed.
    pub sentence: String,
}

/// What is written as JSON of a run.
#[derive(Debug, Serialize)]
pub struct Told<'a, T: Serialize> {
    pub run: &'a Ran,
    #[serde(flatten)]
    pub rest: T,
}

impl Ran {
    /// Says what there is to be said of a run that has left this.
    pub fn finish(mut self, tree: &Tree) -> Ran {
        self.managed = !tree.processes.is_empty();
        let name = printable(self.command.first().map_or("", String::as_str));
        let (elapsed, budget) = (duration((self.elapsed_s * 1e9) as u64), Bytes(self.budget_bytes));
        self.sentence = format!(
            "'{name}' ran for {elapsed} in a budget of {budget} and ended with status {}",
            self.status
        );
        if !self.managed {
            self.sentence += &format!("; nothing of it was managed, {}", self.reason(tree));
        }
        self
    }

    /// Why nothing was managed.
    fn reason(&self, tree: &Tree) -> String {
        match &tree.unmanaged.outside {
            _ if !tree.begun && self.status == COULD_NOT_BEGIN => {
                "as the preload library could not begin, and has said why".to_owned()
            }
            _ if !tree.begun => {
                "as the dynamic loader did not start the preload library".to_owned()
            }
            Some(Seen { pid, name, peak_bytes, reason: Some(reason), .. }) => {
                let (name, peak) = (printable(name), Bytes(*peak_bytes));
                format!("as '{name}' (pid {pid}), which {reason}, had most of its memory, {peak}")
            }
            _ => "as no process that overspill is in needed so much memory".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::Most;
    use overspill::stats::Snapshot;

    fn ran(status: u8, tree: &Tree) -> Ran {
        let ran = Ran {
            command: vec!["/bin/tr\x1bue".to_owned()],
            elapsed_s: 0.0125,
            cpu_s: 0.01,
            status,
            budget_bytes: 64 << 20,
            ..Ran::default()
        };
        ran.finish(tree)
    }

    #[test]
    fn what_was_managed_is_told_without_a_reason() {
        let tree = Tree { processes: vec![Snapshot::default()], begun: true, ..Tree::default() };
        let told = "'/bin/tr?ue' ran for 12.5 ms in a budget of 64 MiB and ended with status 3";
        assert_eq!((ran(3, &tree).managed, ran(3, &tree).sentence.as_str()), (true, told));
    }

    #[test]
    fn if_nothing_was_managed_it_says_why() {
        let seen = |reason: Option<&str>| {
            let (reason, name) = (reason.map(str::to_owned), "st\x1bat".to_owned());
            Some(Seen { pid: 9, name, peak_bytes: 60 << 20, reason, kinds: [].into() })
        };
        let tree = |begun, outside| {
            let unmanaged = Most { outside, ..Most::default() };
            Tree { begun, unmanaged, ..Tree::default() }
        };
        let little = "; nothing of it was managed, as no process that overspill is in needed so";
        for (status, tree, why) in [
            (0, tree(true, None), little),
            (0, tree(true, seen(None)), little),
            (125, tree(true, None), little),
            (
                0,
                tree(true, seen(Some("is statically linked"))),
                "as 'st?at' (pid 9), which is statically linked, had most of its memory, 60 MiB",
            ),
            (0, tree(false, None), "as the dynamic loader did not start the preload library"),
            (125, tree(false, None), "as the preload library could not begin, and has said why"),
        ] {
            let ran = ran(status, &tree);
            assert!(!ran.managed && ran.sentence.contains(why), "{}", ran.sentence);
        }
    }
}
