//! Machine code: what is looked for in it, and how it is moved elsewhere. Nothing is changed here.

/// A system call.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `jmp` with a distance of 32 bits.
const JUMP: u8 = 0xe9;
/// Bytes of it.
pub const JUMP_BYTES: usize = 5;
/// How far a jump inside of a function goes at most, about.
const FUNCTION_MAX: usize = 64 << 10;

/// A jump from one address to another.
pub fn jump(from: usize, to: usize) -> [u8; JUMP_BYTES] {
    let distance = to.wrapping_sub(from + JUMP_BYTES) as i32;
    let mut code = [JUMP; JUMP_BYTES];
    code[1..].copy_from_slice(&distance.to_le_bytes());
    code
}

/// Where each `syscall` of a library's code begins. A C library has some six hundred in two million
/// bytes, and every process looks for them: many bytes at a time, in a tenth of a millisecond.
pub fn syscalls(bytes: &[u8]) -> impl Iterator<Item = usize> {
    const STEP: usize = 64;
    let [first, second] = SYSCALL;
    let may_have = move |start: usize| {
        // The last byte of a step may be the first of a `syscall`.
        let Some(step) = bytes[start..].first_chunk::<{ STEP + 1 }>() else { return true };
        (0..STEP).fold(0, |found, at| {
            found | u8::from(step[at] == first) & u8::from(step[at + 1] == second)
        }) != 0
    };
    let steps = (0..bytes.len()).step_by(STEP).filter(move |start| may_have(*start));
    steps
        .flat_map(|start| start..start + STEP)
        .filter(move |at| bytes[(*at).min(bytes.len())..].starts_with(&SYSCALL))
}

/// Whether something like a jump leads to an offset, from near it.
pub fn is_jumped_to(bytes: &[u8], to: usize) -> bool {
    let leads = |behind: usize, distance: i32| behind.wrapping_add_signed(distance as isize) == to;
    let mut near = to.saturating_sub(i8::MAX as usize + 2)..bytes.len().min(to + i8::MAX as usize);
    let short = near.any(|at| {
        let distance = bytes.get(at + 1).map(|distance| i32::from(*distance as i8));
        matches!(bytes[at], 0xeb | 0x70..=0x7f | 0xe3)
            && distance.is_some_and(|distance| leads(at + 2, distance))
    });
    // The distance tells sooner than what is before it.
    let start = to.saturating_sub(FUNCTION_MAX);
    let far = &bytes[start..bytes.len().min(to + FUNCTION_MAX)];
    short
        || far.windows(4).enumerate().any(|(at, distance)| {
            let distance = i32::from_le_bytes([distance[0], distance[1], distance[2], distance[3]]);
            leads(start + at + 4, distance)
                && matches!(far[..at], [.., 0xe8 | JUMP] | [.., 0x0f, 0x80..=0x8f])
        })
}

/// Moves instructions by a distance to other addresses: what they name relative to themselves is
/// adjusted. None where one is not known.
pub fn moved(code: &[u8], distance: usize) -> Option<Vec<u8>> {
    let mut out = code.to_vec();
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        at += match *rest {
            // lea and mov of 64 bits: relative to themselves; to a register with 32 or 8 bits; to
            // the stack; of registers.
            [0x48 | 0x4c | 0x49 | 0x4d, 0x89 | 0x8b | 0x8d, form, ..] => {
                match (form >> 6, form & 7) {
                    (0, 5) => {
                        let old = i32::from_le_bytes(rest.get(3..7)?.try_into().ok()?);
                        let new =
                            i32::try_from((old as isize).checked_sub(distance as isize)?).ok()?;
                        out[at + 3..at + 7].copy_from_slice(&new.to_le_bytes());
                        7
                    }
                    (2, 4) => 8,
                    (2, _) => 7,
                    (1, 4) => 5,
                    (1, _) => 4,
                    (0, 4) => 4,
                    _ => 3,
                }
            }
            // add, sub and others of a register with 8 bits.
            [0x48 | 0x49, 0x83, 0xc0..=0xff, ..] => 4,
            // mov of a number to the top of the stack.
            [0x48, 0xc7, 0x04, 0x24, ..] => 8,
            // mov, xor of registers; mov of a number to a register.
            [0x89 | 0x31, 0xc0..=0xff, ..] => 2,
            [0x41 | 0x44 | 0x45, 0x89 | 0x31, 0xc0..=0xff, ..] => 3,
            [0xb8..=0xbf, ..] => 5,
            [0x41, 0xb8..=0xbf, ..] => 6,
            _ => return None,
        };
    }
    (at == code.len()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_moved_or_refused() {
        // lea rsi, [rip + 16]; sub rsp, 8
        let code = [0x48, 0x8d, 0x35, 16, 0, 0, 0, 0x48, 0x83, 0xec, 8];
        let mut expected = code;
        expected[3..7].copy_from_slice(&(-240i32).to_le_bytes());
        assert_eq!(moved(&code, 256).unwrap(), expected);
        // mov qword ptr [rsp], 32
        let store = [0x48, 0xc7, 0x04, 0x24, 32, 0, 0, 0];
        assert_eq!(moved(&store, 7).unwrap(), store);
        assert_eq!(moved(&[], 7), Some(vec![]));
        assert_eq!(moved(&[0xe8, 1, 2, 3, 4], 7), None, "a call");
        assert_eq!(moved(&code[..10], 7), None, "cut off");
    }

    #[test]
    fn jumps_reach_both_ways() {
        assert_eq!(jump(0x1000, 0x1005), [JUMP, 0, 0, 0, 0]);
        assert_eq!(jump(0x2000, 0x1000), [JUMP, 0xfb, 0xef, 0xff, 0xff]);
    }
}
