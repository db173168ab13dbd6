//! The constructor and the destructor.
//!
//! The library is linked with `-z initfirst`: the constructor runs before that of any other
//! library, the C library's own included, so that nobody has registered fork handlers or made
//! threads before. `environ` is not set yet then, so the environment is taken from the
//! constructor's arguments.
//!
//! The process begins dormant ([`crate::dormant`]); what an engine needs is prepared when it wakes.
//!
//! A program must not run without its budget unnoticed: if the pool cannot be made, the process
//! ends with one sentence and status 125.

use crate::alloc::{self, entries, loader};
use crate::config::Asked;
use crate::constants;
use crate::load::{self, Program};
use crate::memory::strings::Strings;
use crate::signals::{self, altstack};
use crate::{
    calls, config, delivery, dma, dormant, exec, fork, gate, heap, image, inline, limits, low, pool,
};
use crate::{sys, trap};
use overspill::config::{Config, Delivery};
use overspill_os::{beside, observer, rest, thread};
use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;

/// Exit status when the pool cannot be made, as env(1) and timeout(1) use it for failures of their
/// own.
const STATUS_FAILED: i32 = 125;

/// Why a program in Go has no engine.
const NOT_BY_THREAD: &str = "a program in Go cannot be managed with faults by thread (use --fault \
     signal), nor one with a library in Go (start it with OVERSPILL=off)";

type Constructor = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

// The priority puts it before mimalloc's constructor in this library.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array.00000")]
static CONSTRUCTOR: Constructor = constructor;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

unsafe extern "C" fn constructor(
    _: c_int,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) {
    // SAFETY: the loader passes both, with what the kernel has put behind them.
    unsafe {
        exec::first::give_way(arguments, variables);
        let program = load::asked(variables).map(|file| place(file, arguments, variables));
        begin(variables);
        if let Some(program) = program {
            program.enter(arguments, variables);
        }
    }
}

/// Puts the program of a file into the process, or executes it without an engine where that cannot
/// be.
///
/// # Safety
///
/// As for [`Program::enter`].
unsafe fn place(file: &'static CStr, arguments: Strings, variables: Strings) -> &'static Program {
    match Program::map(file) {
        Ok(program) => {
            let program: &'static Program = Box::leak(Box::new(program));
            image::place(program.base, &program.headers, &program.path);
            program.take_name();
            program
        }
        Err(_) => {
            // SAFETY: the caller's promise.
            let errno = unsafe { load::execute_plainly(file, arguments, variables) };
            fail(&format!("'{}' cannot be executed ({errno})", file.to_string_lossy()))
        }
    }
}

/// # Safety
///
/// The environment of the process.
unsafe fn begin(variables: Strings) {
    fork::register();
    altstack::init();
    // SAFETY: the loader passes the environment.
    let variables = unsafe { environment(variables) };
    let asked = config::from_variables(variables.clone());
    if let Ok(Some(Asked { config: Config { run_dir: Some(_), .. }, .. })) = asked {
        exec::environment::keep(config::settings(variables));
    }
    entries::start();
    match asked {
        Ok(None) => start_unmanaged(),
        Ok(Some(asked)) if asked.strict && observer::is_translated() => {
            fail("a program cannot be managed under valgrind: leave --strict away");
        }
        // What valgrind knows nothing of cannot be had, and it is the program that is to be looked
        // at.
        Ok(Some(_)) if observer::is_translated() => {
            thread::report("the program runs without a budget, under valgrind");
            start_unmanaged();
        }
        // Told of by who looks from outside.
        Ok(Some(asked)) if inline::forbids(delivery::is_by_thread(&asked)) => {
            if asked.strict {
                fail(NOT_BY_THREAD);
            }
            start_unmanaged();
        }
        Ok(Some(mut asked)) => {
            if let Err(error) = asked.config.check() {
                fail(&error.to_string());
            }
            let run_dir = asked.enter_run().unwrap_or_else(|sentence| {
                thread::report(sentence);
                None
            });
            thread::keep_standard_error(asked.reports());
            if let Err(errno) = loader::start() {
                fail(&format!("the loader's data cannot be changed here: {errno}"));
            }
            let has_ours = entries::has_ours();
            asked.config.annexes = annexes(&asked);
            let sleeps =
                asked.config.baselines.dormant && has_ours && asked.config.annexes.is_empty();
            limits::begin(asked.config.overhead());
            run_dir.iter().for_each(pool::await_predecessor);
            if asked.strict {
                exec::admit::be_strict();
            }
            delivery::put_filter(&asked);
            dma::begin();
            if asked.config.run_dir.is_some() && !delivery::is_by_thread(&asked) {
                exec::placed::begin();
            }
            if !has_ours && image::is_sanitized() {
                // It may hold its lock while it maps memory, so nothing wakes for that yet.
                entries::begin_theirs();
            }
            let is_seen =
                asked.config.delivery == Delivery::Signal && (image::is_placed() || inline::maps());
            dormant::begin(asked, start_engine, fail);
            if !sleeps || is_seen {
                dormant::wake();
            }
        }
        Err(error) => fail(&error),
    }
}

/// Large arrays and constants, as far as there is room for them beside what is mapped.
///
/// Not in a program with the runtime of a sanitizer, whose own variables lie there too: it touches
/// them while it blocks all signals, by instructions of its own.
fn annexes(asked: &Asked) -> Vec<Range<usize>> {
    let mut room = asked.config.window_bytes().0 as usize / 2;
    let fits = |range: &Range<usize>| {
        let fits = range.len() <= room;
        room -= if fits { range.len() } else { 0 };
        fits
    };
    let all = image::arrays().into_iter().chain(image::constants());
    let mut annexes: Vec<_> = all.filter(fits).take(pool::ANNEXES_MAX).collect();
    // A look-up takes its time.
    annexes.retain(|_| !image::is_sanitized());
    annexes
}

/// What makes an engine of a dormant process. It has one thread.
fn start_engine(mut asked: Asked) -> Result<(), String> {
    std::panic::set_hook(Box::new(on_panic));
    gate::init();
    calls::find();
    entries::take_exit();
    rest::when_at_rest(heap::trim);
    let sparingly = asked.config.counts_mappings() || limits::addresses::are_limited();
    if !limits::addresses::are_limited() {
        asked.config.low = low::reserve(&asked.config);
    }
    let mut config = delivery::settle(asked)?;
    if inline::forbids(config.delivery == Delivery::Thread) {
        return Err(NOT_BY_THREAD.to_owned());
    }
    let constants = constants::take(&mut config.annexes);
    pool::create(config)?;
    constants::protect(constants);
    if pool::signal_delivery() {
        signals::take_entry();
        trap::map_by(inline::own);
        trap::lead_by(exec::lead);
        inline::start().map_err(|errno| {
            format!("the code of this Go program cannot be changed here ({errno})")
        })?;
    }
    dma::start();
    start_heap(sparingly);
    Ok(())
}

/// The process has no budget.
fn start_unmanaged() {
    gate::init();
    start_heap(overspill_os::vm::commits_strictly());
}

/// The program's requests go to mimalloc from now on.
fn start_heap(sparingly: bool) {
    alloc::start();
    limits::addresses::spare_by(alloc::map_sparingly);
    if sparingly {
        alloc::map_sparingly();
    }
    // The locks of Rust's runtime wait by this function. It is looked up now, because the look-up
    // takes the loader's lock, which a thread that loads a library may hold while it waits for a
    // page. SAFETY: the call takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) };
}

/// A bug of ours: says where, and ends the process. The runtime's own report would read the
/// environment, which may be managed memory by now, and write to a descriptor that engine threads
/// do not have.
fn on_panic(info: &std::panic::PanicHookInfo<'_>) {
    thread::report(format_args!("this is a bug, the program is ended: {info}"));
    beside::end_program()
}

fn fail(error: &str) -> ! {
    thread::report(error);
    sys::exit_group(STATUS_FAILED)
}

extern "C" fn destructor() {
    pool::report_exit();
}

/// The variables of an environment that may be ours; what is not UTF-8 cannot be. The others are
/// not read.
///
/// # Safety
///
/// `variables` is null or an array of C strings that ends with a null, alive for ever.
unsafe fn environment(
    variables: *const *const c_char,
) -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
    let mut next = variables;
    std::iter::from_fn(move || {
        // SAFETY: the caller's promise; nothing is read behind the null.
        unsafe {
            if next.is_null() || (*next).is_null() {
                return None;
            }
            let variable = *next;
            next = next.add(1);
            Some(variable)
        }
    })
    .filter_map(|variable| {
        // SAFETY: a string, of which nothing is read behind the first byte that differs, its end
        // at the latest.
        let is_ours =
            (0..).zip(b"OVERSPILL").all(|(n, byte)| unsafe { *variable.add(n) as u8 == *byte });
        // SAFETY: a string, for ever.
        let variable = is_ours.then(|| unsafe { CStr::from_ptr(variable) })?;
        variable.to_str().ok()?.split_once('=')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_to_its_end() {
        let variables = [c"A=1", c"OVERSPILL=off", c"OVERSPIL", c"OVERSPILL_SET=x=y", c""];
        let ends = [std::ptr::null()];
        let variables: Vec<_> = variables.map(CStr::as_ptr).into_iter().chain(ends).collect();
        // SAFETY: an array of C strings that ends with a null.
        let read: Vec<_> = unsafe { environment(variables.as_ptr()) }.collect();
        assert_eq!(read, [("OVERSPILL", "off"), ("OVERSPILL_SET", "x=y")]);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { environment(std::ptr::null()) }.count(), 0);
    }
}
