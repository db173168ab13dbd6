//! The registers of a thread that a signal has interrupted.

/// Bytes below the stack pointer that belong to the function that runs.
pub const RED_ZONE: usize = 128;

/// The registers of the interrupted program that matter here.
pub struct Registers<'a>(pub &'a mut [i64; 23]);

const ARGUMENTS: [i32; 6] =
    [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];

impl Registers<'_> {
    /// The value of a register.
    pub fn get(&self, register: i32) -> usize {
        self.0[register as usize] as usize
    }

    /// Sets a register.
    pub fn set(&mut self, register: i32, value: usize) {
        self.0[register as usize] = value as i64;
    }

    /// The arguments of a system call.
    pub fn arguments(&self) -> [usize; 6] {
        ARGUMENTS.map(|register| self.get(register))
    }

    /// Sets the arguments of a system call.
    pub fn set_arguments(&mut self, arguments: [usize; 6]) {
        ARGUMENTS.iter().zip(arguments).for_each(|(register, value)| self.set(*register, value));
    }
}
