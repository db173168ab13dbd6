//! Processors: on which one the caller runs, and which memory is near to each.

use rustix::fs::{Mode, OFlags};
use std::sync::OnceLock;

/// Processors that this process may use. Found once: files of cgroups are read for that.
pub fn available() -> usize {
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    *AVAILABLE.get_or_init(|| std::thread::available_parallelism().map_or(2, |count| count.get()))
}

/// The processor that the calling thread runs on just now: a hint, since it may move at any moment.
///
/// Read from the thread's restartable-sequences area, which the kernel keeps up to date and the C
/// library (glibc 2.35) registers: 1 ns, where the vDSO's getcpu takes ten times as long.
#[inline]
pub fn current() -> usize {
    match registered() {
        cpu @ 0.. => cpu as usize,
        _ => rustix::thread::sched_getcpu(),
    }
}

/// `cpu_id` of the thread's area; negative where there is none.
#[inline(always)]
fn registered() -> i32 {
    let cpu: i32;
    // SAFETY: 1. the symbol is weak, and its address is looked at before it is used; 2. where it
    // exists, it is the distance of the area from the thread pointer, and the area is there in
    // every thread, registered or not; 3. nothing is written.
    unsafe {
        std::arch::asm!(
            ".weak __rseq_offset",
            "mov {at}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {cpu:e}, -1",
            "test {at}, {at}",
            "jz 2f",
            "mov {at}, qword ptr [{at}]",
            "mov {cpu:e}, dword ptr fs:[{at} + {cpu_id}]",
            "2:",
            at = out(reg) _,
            cpu = out(reg) cpu,
            cpu_id = const CPU_ID_OFFSET,
            options(nostack, readonly),
        );
    }
    cpu
}

/// Place of `cpu_id` in the kernel's `struct rseq`.
const CPU_ID_OFFSET: usize = 4;

/// The processors that the machine may have, and the NUMA node of each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Number of the zone of each processor: its node, counted without gaps.
    node_of: Box<[usize]>,
    nodes: usize,
}

impl Topology {
    /// That of this machine; one node where the kernel does not tell. Read once: the children of a
    /// fork ask again.
    pub fn of_machine() -> &'static Topology {
        static MACHINE: OnceLock<Topology> = OnceLock::new();
        MACHINE.get_or_init(Topology::read)
    }

    fn read() -> Topology {
        let cpus =
            last_of_list(&read("/sys/devices/system/cpu/possible")).map_or(1, |last| last + 1);
        let mut nodes = Vec::new();
        for_each_of_list(&read("/sys/devices/system/node/has_memory"), |node| {
            let mut of_node = Vec::new();
            for_each_of_list(
                &read(&format!("/sys/devices/system/node/node{node}/cpulist")),
                |cpu| of_node.push(cpu),
            );
            nodes.push(of_node);
        });
        Topology::new(cpus, &nodes)
    }

    /// `cpus` processors, of which each of `nodes` lists its own; who is in none belongs to the
    /// first.
    pub fn new(cpus: usize, nodes: &[Vec<usize>]) -> Topology {
        let mut node_of = vec![0; cpus.max(1)].into_boxed_slice();
        for (node, cpus) in nodes.iter().enumerate() {
            cpus.iter().for_each(|cpu| {
                if let Some(of) = node_of.get_mut(*cpu) {
                    *of = node;
                }
            });
        }
        Topology { node_of, nodes: nodes.len().max(1) }
    }

    /// Number of processors.
    pub fn cpus(&self) -> usize {
        self.node_of.len()
    }

    /// Number of nodes with memory.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The node of a processor.
    pub fn node(&self, cpu: usize) -> usize {
        self.node_of[cpu % self.node_of.len()]
    }
}

/// A small file of the kernel's; empty if it cannot be read.
fn read(path: &str) -> String {
    let mut buffer = [0; 4096];
    let len = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut buffer))
        .unwrap_or(0);
    String::from_utf8_lossy(&buffer[..len]).trim().to_owned()
}

/// The numbers of a list such as `0-3,8`.
fn for_each_of_list(list: &str, mut each: impl FnMut(usize)) {
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            (first..=last).for_each(&mut each);
        }
    }
}

fn last_of_list(list: &str) -> Option<usize> {
    let mut last = None;
    for_each_of_list(list, |n| last = Some(n));
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_understood() {
        let mut seen = Vec::new();
        for_each_of_list("0-3,8,10-11", |n| seen.push(n));
        assert_eq!(seen, [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(
            (last_of_list(""), last_of_list("x"), last_of_list("0-7")),
            (None, None, Some(7))
        );
    }

    #[test]
    fn the_caller_runs_on_a_processor_of_the_machine() {
        let machine = Topology::of_machine();
        let cpu = current();
        assert!(
            cpu < machine.cpus() && machine.node(cpu) < machine.nodes(),
            "{cpu} of {machine:?}"
        );
    }

    #[test]
    fn processors_of_no_node_belong_to_the_first() {
        let two = Topology::new(5, &[vec![0, 2], vec![1, 3, 99]]);
        assert_eq!((0..5).map(|cpu| two.node(cpu)).collect::<Vec<_>>(), [0, 1, 0, 1, 0]);
        assert_eq!((two.nodes(), Topology::new(0, &[]).cpus()), (2, 1));
    }
}
