//! `overspill probe`, and the question that `overspill run` asks first: may it work here?

use crate::args::{FaultDelivery, ProbeArgs};
use crate::failure::Failure;
use crate::memory::MemoryLimits;
use crate::program::preload;
use crate::swap;
use overspill::units::Bytes;
use overspill_os::Errno;
use overspill_os::probe::{Facility, Features, Probe, probe, simulated};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;

/// Exit status where `overspill run` does not work.
const UNUSABLE: u8 = 1;

/// Runs the subcommand.
pub fn run(args: &ProbeArgs) -> Result<u8, Failure> {
    let findings = Findings {
        probe: probe(),
        library: preload::find_for_this().map(drop).map_err(|failure| failure.sentence),
        limits: MemoryLimits::read(),
        swap: swap::default_directory(std::env::var_os("TMPDIR")),
    };
    let text = if args.json { format!("{:#}\n", findings.to_json()) } else { findings.to_text() };
    // Whoever reads this may have read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if findings.works().is_ok() { 0 } else { UNUSABLE })
}

/// How faults will be served where `fault` is asked for: by signal, or by a thread where it is left
/// to us and signals cannot. The error says what to change.
pub fn way(probe: &Probe, fault: FaultDelivery) -> Result<FaultDelivery, String> {
    if fault != FaultDelivery::Auto {
        return requirement(probe, fault).map(|()| fault);
    }
    let by_signal = requirement(probe, FaultDelivery::Signal).map(|()| FaultDelivery::Signal);
    by_signal.or_else(|_| requirement(probe, FaultDelivery::Thread).map(|()| FaultDelivery::Thread))
}

/// What the program is told: [`way`], but `auto` if a thread may take over where a process finds
/// that signals cannot be had in it (a policy against changes of code, another C library).
pub fn settled(probe: &Probe, fault: FaultDelivery) -> Result<FaultDelivery, String> {
    let way = way(probe, fault)?;
    let both = fault == FaultDelivery::Auto
        && way == FaultDelivery::Signal
        && requirement(probe, FaultDelivery::Thread).is_ok();
    Ok(if both { FaultDelivery::Auto } else { way })
}

/// The same on this machine.
pub fn settled_here(fault: FaultDelivery) -> Result<FaultDelivery, Failure> {
    settled(&overspill_os::probe::probe(), fault).map_err(Failure::own)
}

/// Whether faults can be served in this way; the error says what to change.
fn requirement(probe: &Probe, fault: FaultDelivery) -> Result<(), String> {
    if !probe.user_faults() {
        return Err(no_userfaultfd(probe));
    }
    if !probe.features.has(Features::WRITE_PROTECT) {
        let kernel = &probe.kernel;
        return Err(format!(
            "Linux {kernel} cannot write-protect through userfaultfd: run Linux 5.7 or later"
        ));
    }
    match fault {
        FaultDelivery::Signal if !probe.features.has(Features::SIGBUS) => {
            Err("this kernel cannot turn faults into signals: use --fault thread".to_owned())
        }
        FaultDelivery::Signal if probe.seccomp.is_err() => Err(format!(
            "system calls cannot be filtered here (seccomp: {}): use --fault thread",
            reason(probe.seccomp)
        )),
        FaultDelivery::Auto | FaultDelivery::Thread if !probe.kernel_faults() => Err(format!(
            "only faults in user mode may be served here, so system calls would fail with EFAULT \
             on pages that are out: use --fault signal; or, {}",
            permit_kernel_faults(probe)
        )),
        _ => Ok(()),
    }
}

fn no_userfaultfd(probe: &Probe) -> String {
    match (probe.uffd_syscall, probe.uffd_user_mode) {
        (Err(Errno::NOSYS), _) => {
            "this kernel has no userfaultfd: run one that is built with CONFIG_USERFAULTFD=y"
                .to_owned()
        }
        (_, Err(Errno::PERM)) => format!(
            "a seccomp filter, as containers have it, forbids userfaultfd: {}, or allow the \
             system call in the profile",
            match probe.uffd_device {
                Err(Errno::NOENT) => "give the container the device (--device /dev/userfaultfd)",
                _ => "let its user open the device that it has (/dev/userfaultfd)",
            }
        ),
        (syscall, _) => {
            format!("userfaultfd cannot be opened ({}): try another kernel", reason(syscall))
        }
    }
}

/// The rule by which the device is a group's whenever it is made.
const DEVICE_RULE: &str = "KERNEL==\"userfaultfd\", GROUP=\"GROUP\", MODE=\"0660\"";

/// The ways to have faults inside system calls served, the narrowest first that this machine
/// offers; and what they open.
fn permit_kernel_faults(probe: &Probe) -> String {
    let device = match probe.uffd_device {
        // Linux before 6.1, or a container without the node.
        Err(Errno::NOENT | Errno::NXIO) => String::new(),
        _ => format!(
            "give /dev/userfaultfd to a group that you are in, with mode 0660 (udev rule \
             {DEVICE_RULE}), "
        ),
    };
    format!(
        "as root, {device}grant CAP_SYS_PTRACE, or open it to all users by `sysctl \
         vm.unprivileged_userfaultfd=1`; who has it can hold the kernel up inside of a system \
         call, which attacks on the kernel make use of"
    )
}

fn reason(access: Facility) -> String {
    access.err().map_or_else(|| "yes".to_owned(), |error| error.to_string())
}

fn yes_or_reason(access: Facility) -> String {
    access.err().map_or_else(|| "yes".to_owned(), |error| format!("no: {error}"))
}

struct Findings {
    probe: Probe,
    /// Whether the preload library is there, or why not.
    library: Result<(), String>,
    limits: MemoryLimits,
    swap: Option<std::path::PathBuf>,
}

impl Findings {
    /// How `overspill run` serves faults here, or why it does not work.
    fn works(&self) -> Result<FaultDelivery, String> {
        let way = way(&self.probe, FaultDelivery::Auto)?;
        self.library.clone().map(|()| way)
    }

    /// What is used by `overspill run`, in sentences.
    fn in_use(&self) -> Vec<String> {
        let probe = &self.probe;
        let mut lines = Vec::new();
        match self.works() {
            Ok(FaultDelivery::Signal) => lines.push(
                "overspill run works here: threads serve their own faults, by signal, and a \
                 filter stops system calls on pages that are out."
                    .to_owned(),
            ),
            Ok(_) => {
                let way = if probe.uffd_syscall.is_ok() {
                    "the userfaultfd system call"
                } else {
                    "/dev/userfaultfd"
                };
                lines.push(format!(
                    "overspill run works here: a thread serves faults, those inside system calls \
                     too, through {way}."
                ));
            }
            Err(sentence) => {
                lines.push(format!("overspill run does not work here: {sentence}."));
                return lines;
            }
        }
        lines.push(match self.limits.default_budget() {
            Some(budget) => {
                format!("A program gets {budget} of RAM unless --memory says otherwise.")
            }
            None => "How much memory is available cannot be read: --memory is needed.".to_owned(),
        });
        lines.push(match &self.swap {
            Some(dir) => format!(
                "What does not fit goes to a file in {} unless --swap says \
                                  otherwise.",
                dir.display()
            ),
            None => "There is no directory on a disk for swap: what does not fit compressed does \
                     not fit."
                .to_owned(),
        });
        lines
    }

    /// What could be had, and how.
    fn advice(&self) -> Vec<String> {
        let probe = &self.probe;
        let mut lines = Vec::new();
        if !probe.user_faults() {
            return lines;
        }
        if way(probe, FaultDelivery::Auto) == Ok(FaultDelivery::Signal)
            && requirement(probe, FaultDelivery::Thread).is_err()
        {
            lines.push(format!(
                "A thread can serve faults (--fault thread), as programs need that use io_uring: \
                 {}.",
                permit_kernel_faults(probe)
            ));
        }
        if !probe.features.has(Features::MOVE) {
            lines.push(
                "Linux 6.8 or later moves pages instead of copying them, which is faster and safe \
                 for DMA."
                    .to_owned(),
            );
        }
        if probe.vector_drop.is_err() {
            lines.push(
                "Linux 6.14 or later drops scattered pages at once, which makes eviction faster."
                    .to_owned(),
            );
        }
        if let Err(error) = probe.io_uring {
            let remedy = match error {
                Errno::NOSYS => "run a kernel that is built with CONFIG_IO_URING=y",
                _ => {
                    "run `sysctl kernel.io_uring_disabled=0`, or allow io_uring in the \
                     container's seccomp profile"
                }
            };
            lines.push(format!(
                "Swap I/O uses pread and pwrite, because io_uring is not to be had ({error}): \
                 {remedy}."
            ));
        }
        if self.swap.is_none() {
            lines.push(
                "For more than fits compressed, name a directory on a disk with --swap or TMPDIR."
                    .to_owned(),
            );
        }
        lines
    }

    fn to_text(&self) -> String {
        let probe = &self.probe;
        let size =
            |size: Option<Bytes>| size.map_or_else(|| "none".to_owned(), |size| size.to_string());
        let sysctl = probe
            .unprivileged_userfaultfd
            .map_or_else(|| "not there".to_owned(), |n| n.to_string());
        let mut text = String::new();
        let mut row = |label: &str, value: &str| {
            writeln!(text, "  {label:<28} {value}").expect("strings take everything")
        };
        row("kernel", &probe.kernel);
        row("userfaultfd, system call", &yes_or_reason(probe.uffd_syscall));
        row("userfaultfd, device", &yes_or_reason(probe.uffd_device));
        row("userfaultfd, user mode only", &yes_or_reason(probe.uffd_user_mode));
        row("vm.unprivileged_userfaultfd", &sysctl);
        for (label, feature) in [
            ("write protection", Features::WRITE_PROTECT),
            ("faults as signals", Features::SIGBUS),
            ("protection of absent pages", Features::WP_UNPOPULATED),
            ("poisoned pages", Features::POISON),
            ("moving pages", Features::MOVE),
        ] {
            row(label, if probe.features.has(feature) { "yes" } else { "no" });
        }
        row("dropping pages at once", &yes_or_reason(probe.vector_drop));
        row("io_uring", &yes_or_reason(probe.io_uring));
        row("filters of system calls", &yes_or_reason(probe.seccomp));
        row("preload library", if self.library.is_ok() { "yes" } else { "no" });
        row("transparent huge pages", probe.huge_pages.as_deref().unwrap_or("none"));
        row("memory cgroup limit", &size(self.limits.cgroup));
        row("memory available", &size(self.limits.available));
        let missing = missing_by_simulation();
        if !missing.is_empty() {
            row("simulated (a test)", &missing.join(", "));
        }
        for line in self.in_use() {
            write!(text, "\n{line}").expect("strings take everything");
        }
        let advice = self.advice();
        if !advice.is_empty() {
            text += "\n\nTo get more:";
        }
        for line in advice {
            write!(text, "\n- {line}").expect("strings take everything");
        }
        text + "\n"
    }

    fn to_json(&self) -> Value {
        let probe = &self.probe;
        let access = |access: Facility| {
            let error = access.err().map(|error| error.to_string());
            json!({"ok": access.is_ok(), "error": error})
        };
        let fault = self.works().ok();
        let word = |fault| if fault == FaultDelivery::Thread { "thread" } else { "signal" };
        json!({
            "kernel": probe.kernel,
            "userfaultfd": {
                "syscall": access(probe.uffd_syscall),
                "device": access(probe.uffd_device),
                "user_mode_only": access(probe.uffd_user_mode),
                "unprivileged_userfaultfd": probe.unprivileged_userfaultfd,
                "kernel_faults": probe.kernel_faults(),
                "features": probe.features.names(),
                "feature_bits": probe.features.0,
            },
            "process_madvise": access(probe.vector_drop),
            "io_uring": access(probe.io_uring),
            "seccomp": access(probe.seccomp),
            "preload_library": {"ok": self.library.is_ok(), "error": self.library.as_ref().err()},
            "transparent_huge_pages": probe.huge_pages,
            "memory_cgroup_limit_bytes": self.limits.cgroup.map(|size| size.0),
            "memory_available_bytes": self.limits.available.map(|size| size.0),
            "simulated_missing": missing_by_simulation(),
            "run": {
                "works": fault.is_some(),
                "fault": fault.map(word),
                "memory_bytes": self.limits.default_budget().map(|size| size.0),
                "swap": self.swap,
            },
            "in_use": self.in_use(),
            "advice": self.advice(),
        })
    }
}

fn missing_by_simulation() -> Vec<&'static str> {
    let s = simulated();
    let flags = [s.no_uffd, s.no_move, s.no_kernel_faults, s.no_uring, s.no_patch];
    let names = overspill_os::probe::Simulated::NAMES;
    names.into_iter().zip(flags).filter(|(_, missing)| *missing).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Probe {
        Probe {
            kernel: "6.18.0".to_owned(),
            uffd_syscall: Ok(()),
            uffd_user_mode: Ok(()),
            uffd_device: Ok(()),
            unprivileged_userfaultfd: Some(0),
            features: Features(0x1ffff),
            io_uring: Ok(()),
            seccomp: Ok(()),
            vector_drop: Ok(()),
            huge_pages: Some("madvise".to_owned()),
        }
    }

    fn findings(probe: Probe) -> Findings {
        let limits = MemoryLimits { cgroup: None, available: Some(Bytes(4 << 30)) };
        Findings { probe, library: Ok(()), limits, swap: Some("/var/tmp".into()) }
    }

    #[test]
    fn without_its_library_it_does_not_work() {
        let findings = Findings { library: Err("it is missing".to_owned()), ..findings(whole()) };
        let text = findings.to_text();
        assert!(text.contains("overspill run does not work here: it is missing."), "{text}");
        assert!(!text.contains("overspill run works here"), "{text}");
        let json = findings.to_json();
        assert_eq!((&json["run"]["works"], &json["run"]["fault"]), (&json!(false), &Value::Null));
        assert_eq!(json["preload_library"]["error"], "it is missing");
    }

    #[test]
    fn everything_there_needs_no_advice() {
        let findings = findings(whole());
        assert!(findings.advice().is_empty());
        let text = findings.to_text();
        assert!(
            text.contains("overspill run works here") && !text.contains("To get more"),
            "{text}"
        );
        assert!(
            text.contains("A program gets 3 GiB of RAM") && text.contains("a file in /var/tmp"),
            "{text}"
        );
        assert_eq!(findings.to_json()["run"]["fault"], "signal");
        assert_eq!(settled(&findings.probe, FaultDelivery::Auto), Ok(FaultDelivery::Auto));
        let unfiltered = Probe { seccomp: Err(Errno::INVAL), ..findings.probe };
        assert_eq!(
            [way, settled].map(|decide| decide(&unfiltered, FaultDelivery::Auto)),
            [Ok(FaultDelivery::Thread), Ok(FaultDelivery::Thread)]
        );
    }

    #[test]
    fn the_device_alone_is_enough() {
        let probe =
            Probe { uffd_syscall: Err(Errno::PERM), uffd_user_mode: Err(Errno::PERM), ..whole() };
        assert_eq!(way(&probe, FaultDelivery::Thread), Ok(FaultDelivery::Thread));
        let unfiltered = Probe { seccomp: Err(Errno::INVAL), ..probe };
        assert!(findings(unfiltered).to_text().contains("through /dev/userfaultfd"));
    }

    #[test]
    fn user_mode_only_refuses_threads_and_allows_signals() {
        let probe =
            Probe { uffd_syscall: Err(Errno::PERM), uffd_device: Err(Errno::ACCESS), ..whole() };
        let unfiltered = Probe { seccomp: Err(Errno::INVAL), ..probe.clone() };
        for sentence in [way(&probe, FaultDelivery::Thread), way(&unfiltered, FaultDelivery::Auto)]
            .map(Result::unwrap_err)
        {
            for part in [
                "EFAULT",
                "sysctl vm.unprivileged_userfaultfd=1",
                "KERNEL==\"userfaultfd\", GROUP=\"GROUP\", MODE=\"0660\"",
                "CAP_SYS_PTRACE",
                "can hold the kernel up",
            ] {
                assert!(sentence.contains(part), "{sentence}");
            }
            assert!(!sentence.contains("666"), "{sentence}");
        }
        assert_eq!(
            [FaultDelivery::Auto, FaultDelivery::Signal].map(|fault| settled(&probe, fault)),
            [Ok(FaultDelivery::Signal), Ok(FaultDelivery::Signal)]
        );
        assert!(way(&unfiltered, FaultDelivery::Signal).unwrap_err().contains("--fault thread"));
        let json = findings(probe.clone()).to_json();
        assert_eq!(
            (&json["run"]["works"], &json["run"]["fault"]),
            (&json!(true), &json!("signal"))
        );
        let text = findings(probe.clone()).to_text();
        assert!(
            text.contains("by signal") && text.contains("sysctl vm.unprivileged_userfaultfd=1"),
            "{text}"
        );
        let without_node = Probe { uffd_device: Err(Errno::NOENT), ..probe };
        assert!(
            !way(&without_node, FaultDelivery::Thread).unwrap_err().contains("/dev/userfaultfd")
        );
    }

    #[test]
    fn each_kind_of_absence_has_its_remedy() {
        let none = |syscall, device| Probe {
            uffd_syscall: Err(syscall),
            uffd_user_mode: Err(syscall),
            uffd_device: Err(device),
            features: Features::default(),
            ..whole()
        };
        for fault in [FaultDelivery::Auto, FaultDelivery::Signal] {
            let refusal = |probe: &Probe| way(probe, fault).unwrap_err();
            assert!(refusal(&none(Errno::NOSYS, Errno::NOENT)).contains("CONFIG_USERFAULTFD=y"));
            assert!(
                refusal(&none(Errno::PERM, Errno::NOENT)).contains("--device /dev/userfaultfd")
            );
            assert!(refusal(&none(Errno::PERM, Errno::ACCESS)).contains("open the device"));
            assert!(refusal(&none(Errno::MFILE, Errno::MFILE)).contains(&Errno::MFILE.to_string()));
        }
        let old = Probe { features: Features::SIGBUS, ..whole() };
        assert!(way(&old, FaultDelivery::Auto).unwrap_err().contains("Linux 5.7"));
        assert!(findings(none(Errno::NOSYS, Errno::NOENT)).to_json()["run"]["fault"].is_null());
    }

    #[test]
    fn lesser_things_missing_are_advice() {
        let probe = Probe {
            features: Features(Features::WRITE_PROTECT.0),
            io_uring: Err(Errno::PERM),
            vector_drop: Err(Errno::INVAL),
            ..whole()
        };
        let advice = Findings { swap: None, ..findings(probe) }.advice().join("\n");
        for part in ["Linux 6.8", "Linux 6.14", "io_uring_disabled=0", "--swap or TMPDIR"] {
            assert!(advice.contains(part), "{advice}");
        }
    }
}
