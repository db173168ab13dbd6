//! Filters of the kernel's: classic BPF over what it tells of a call.

/// The layout of the kernel's struct seccomp_data.
pub mod data {
    pub const NUMBER: u32 = 0;
    pub const ARCHITECTURE: u32 = 4;
    /// Of the instruction behind the call.
    pub const ADDRESS: u32 = 8;
    /// The lower half of argument `n`.
    pub const fn lower(n: usize) -> u32 {
        16 + 8 * n as u32
    }
    /// The upper half of argument `n`.
    pub const fn upper(n: usize) -> u32 {
        16 + 8 * n as u32 + 4
    }
}

/// AUDIT_ARCH_X86_64.
pub const ARCHITECTURE: u32 = 0xc000_003e;

pub const RET_TRAP: u32 = 0x0003_0000;
pub const RET_ERRNO: u32 = 0x0005_0000;
pub const RET_ALLOW: u32 = 0x7fff_0000;

/// Instructions of classic BPF.
pub mod op {
    pub const LOAD: u16 = 0x20;
    pub const AND: u16 = 0x54;
    pub const OR: u16 = 0x44;
    pub const JUMP: u16 = 0x05;
    pub const IF_EQUAL: u16 = 0x15;
    pub const IF_AT_LEAST: u16 = 0x35;
    pub const IF_SET: u16 = 0x45;
    pub const RETURN: u16 = 0x06;
    pub const STORE: u16 = 0x02;
    pub const LOAD_CELL: u16 = 0x60;
    pub const LOAD_NUMBER: u16 = 0x00;
    pub const SHIFT_LEFT: u16 = 0x64;
    pub const SHIFT_RIGHT: u16 = 0x74;
    /// To the second register, and with it.
    pub const TO_X: u16 = 0x07;
    pub const OR_X: u16 = 0x4c;
}

/// One instruction, as the kernel's struct sock_filter.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions to leave out if the condition holds, and if it does not.
    pub if_true: u8,
    /// See `if_true`.
    pub if_false: u8,
    /// Its constant.
    pub k: u32,
}

pub const fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, k }
}

pub const fn branch(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, k }
}

#[cfg(test)]
pub mod interpreter {
    use super::{Instruction, data, op};

    /// What the kernel tells a filter.
    pub struct Call {
        pub number: u32,
        pub arguments: [u64; 6],
        pub architecture: u32,
        pub address: u64,
    }

    /// Runs the filter as the kernel does, and counts its steps.
    pub fn run(program: &[Instruction], call: &Call) -> (u32, usize) {
        let load = |at: u32| match at {
            data::NUMBER => call.number,
            data::ARCHITECTURE => call.architecture,
            data::ADDRESS => call.address as u32,
            12 => (call.address >> 32) as u32,
            at => {
                let (word, upper) = ((at - 16) / 8, (at - 16) % 8 == 4);
                (call.arguments[word as usize] >> if upper { 32 } else { 0 }) as u32
            }
        };
        let (mut a, mut x, mut cell, mut at, mut steps) = (0u32, 0u32, 0u32, 0, 0);
        loop {
            let Instruction { code, if_true, if_false, k } = program[at];
            at += 1;
            steps += 1;
            let mut jump = |holds: bool| at += if holds { if_true } else { if_false } as usize;
            match code {
                op::LOAD => a = load(k),
                op::LOAD_NUMBER => a = k,
                op::LOAD_CELL => a = cell,
                op::STORE => cell = a,
                op::AND => a &= k,
                op::OR => a |= k,
                op::SHIFT_LEFT => a <<= k,
                op::SHIFT_RIGHT => a >>= k,
                op::TO_X => x = a,
                op::OR_X => a |= x,
                op::IF_EQUAL => jump(a == k),
                op::IF_AT_LEAST => jump(a >= k),
                op::IF_SET => jump(a & k != 0),
                op::JUMP => at += k as usize,
                op::RETURN => return (k, steps),
                _ => panic!("no such instruction: {code:#x}"),
            }
        }
    }
}
