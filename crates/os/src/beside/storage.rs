//! Thread-local storage of the sibling's threads: the layout of the program's first thread, copied
//! when the process began.

use crate::units::PAGE_SIZE;
use crate::{process, tls};
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// Most that the static thread-local storage of the loaded libraries may take.
const STATIC_BYTES_MAX: usize = 4 << 30;
/// Most that is copied of a library's: what ours needs, and the C library, is far less.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// Most libraries with thread-local storage that a thread of ours can reach through its vector.
const MODULES: usize = 250;
/// Bytes of the C library's struct pthread where it does not say how many they are: 2.3 KiB in
/// glibc 2.36.
const PTHREAD_BYTES: usize = 4096;
/// Bytes of the kernel's struct rseq as it was first.
pub(super) const RSEQ_BYTES: usize = 32;
/// What a thread pointer is a multiple of, or more if a library's storage asks for more.
const ALIGN: usize = 64;
/// An entry of the vector.
const ENTRY: usize = 2 * size_of::<usize>();

/// The thread-local storage of the program's first thread when the process began, from which that
/// of our threads is made.
pub(super) struct Template {
    /// Bytes below the thread pointer, and from there on to the end of a page: multiples of what
    /// any storage asks its place to be a multiple of.
    pub(super) bytes: usize,
    control: usize,
    /// Bytes from the thread pointer to the vector.
    vector: usize,
    /// Of each library what it holds at first, and where that begins, in bytes below the thread
    /// pointer.
    pub(super) images: Vec<(usize, Box<[u8]>)>,
    /// Of each library by its number, up to the last that has any: where its storage begins, in
    /// bytes below the thread pointer; 0 for none.
    pub(super) modules: Vec<usize>,
    /// Distance from the thread pointer to the area of restartable sequences; 0 for none.
    pub(super) rseq: isize,
}

static TEMPLATE: OnceLock<Template> = OnceLock::new();

/// The storage that [`prepare`] has found.
pub(super) fn template() -> &'static Template {
    TEMPLATE.get().expect("threads are made beside the program")
}

/// From now on the engine's threads live beside the program. Called once, on the program's first
/// thread, before any other code of the program has run: what its libraries keep in thread-local
/// storage is as they were linked.
pub fn prepare() {
    /// What [`visit`] finds.
    struct Found {
        thread_pointer: usize,
        modules: [usize; MODULES],
        lengths: [usize; MODULES],
        align: usize,
        /// Whether the first object was there: the executable, of which no code runs on our
        /// threads.
        has_executable: bool,
    }
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes an entry, and `prepare` passes its own value.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
        let start = info.dlpi_tls_data as usize;
        let below = found.thread_pointer.wrapping_sub(start);
        // What lies elsewhere was allocated for this thread.
        if start != 0 && below <= STATIC_BYTES_MAX && info.dlpi_tls_modid < MODULES {
            found.modules[info.dlpi_tls_modid] = below;
            // SAFETY: the loader passes the headers of a loaded object.
            let headers =
                unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            let storage = headers.iter().find(|header| header.p_type == libc::PT_TLS);
            let length = storage.map_or(0, |header| header.p_memsz as usize);
            found.align = found.align.max(storage.map_or(0, |header| header.p_align as usize));
            found.lengths[info.dlpi_tls_modid] =
                if found.has_executable { length.min(COPIED_BYTES_MAX) } else { 0 };
        }
        found.has_executable = true;
        0
    }
    let thread_pointer = tls::thread_pointer();
    let mut found = Found {
        thread_pointer,
        modules: [0; MODULES],
        lengths: [0; MODULES],
        align: ALIGN,
        has_executable: false,
    };
    // SAFETY: the callback has the type, and `found` lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    let rseq = rseq_offset();
    let align = found.align.min(PAGE_SIZE);
    let below = found.modules.iter().copied().max().unwrap_or(0).max((-rseq).max(0) as usize);
    let last = found.modules.iter().rposition(|below| *below != 0).unwrap_or(0);
    let images = found.modules.iter().zip(found.lengths).filter(|(_, length)| *length != 0);
    let images = images.map(|(below, length)| {
        // SAFETY: so much of the storage of this thread is the library's, and it was there when the
        // process began.
        let bytes =
            unsafe { std::slice::from_raw_parts((thread_pointer - below) as *const u8, length) };
        (*below, bytes.into())
    });
    let vector = pthread_bytes(rseq).next_multiple_of(ALIGN);
    let _ = TEMPLATE.set(Template {
        bytes: below.next_multiple_of(align),
        control: (vector + ENTRY * (1 + 1 + last)).next_multiple_of(align),
        vector,
        images: images.collect(),
        modules: found.modules[..=last].to_vec(),
        rseq,
    });
    process::set_used();
}

/// Bytes of the C library's struct pthread, as it tells debuggers, the area of restartable
/// sequences included where that lies behind the thread pointer.
fn pthread_bytes(rseq: isize) -> usize {
    // SAFETY: the symbol is a constant of the C library's, of this type.
    let told = unsafe {
        let bytes = libc::dlsym(libc::RTLD_DEFAULT, c"_thread_db_sizeof_pthread".as_ptr());
        if bytes.is_null() { PTHREAD_BYTES } else { *bytes.cast::<u32>() as usize }
    };
    told.max(rseq.max(0) as usize + RSEQ_BYTES)
}

/// Distance from the thread pointer to the area that the C library registers, 0 if it has none
/// (before glibc 2.35).
fn rseq_offset() -> isize {
    // SAFETY: the symbol is a constant of the C library's, of this type.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        if offset.is_null() { 0 } else { *offset }
    }
}

/// Bytes of storage below a thread pointer.
pub(crate) fn bytes() -> usize {
    template().bytes
}

/// Bytes from a thread pointer on: the C library's control block, and the vector.
pub(crate) fn control_bytes() -> usize {
    template().control
}

/// Writes the thread-local storage of a thread that does not run yet.
///
/// # Safety
///
/// [`bytes`] below the thread pointer and [`control_bytes`] from there on are the caller's alone.
pub(crate) unsafe fn write_storage(thread_pointer: usize) {
    /// Words of the C library's control block whose places are part of the ABI: itself, its
    /// vector, itself again, and the two secrets that compilers and setjmp use.
    const SELF: usize = 0;
    const VECTOR: usize = 1;
    const SELF_AGAIN: usize = 2;
    const SECRETS: [usize; 2] = [5, 6];
    let template = template();
    // SAFETY: 1. the caller's promise; 2. each image lies at the place in the storage from which it
    // was taken; 3. the control block has room for the words, and the area of restartable sequences
    // lies in it or in the storage.
    unsafe {
        for (below, image) in &template.images {
            std::ptr::copy_nonoverlapping(
                image.as_ptr(),
                (thread_pointer - below) as *mut u8,
                image.len(),
            );
        }
        std::ptr::write_bytes(thread_pointer as *mut u8, 0, template.vector);
        let vector = vector(thread_pointer, template);
        let control = thread_pointer as *mut usize;
        control.add(SELF).write(thread_pointer);
        control.add(VECTOR).write(vector);
        control.add(SELF_AGAIN).write(thread_pointer);
        for secret in SECRETS {
            control.add(secret).write((tls::thread_pointer() as *const usize).add(secret).read());
        }
        if template.rseq != 0 {
            // No processor is known until it is registered.
            const CPU_ID: usize = 4;
            ((thread_pointer.wrapping_add_signed(template.rseq) + CPU_ID) as *mut i32).write(-1);
        }
    }
    tls::clear_of(thread_pointer);
}

/// The vector by which code finds the thread-local storage of a library by number: behind the
/// control block. Its generation is the last there can be, so that the loader never replaces it.
fn vector(thread_pointer: usize, template: &Template) -> usize {
    const UNALLOCATED: usize = usize::MAX;
    let entries = (thread_pointer + template.vector) as *mut [usize; 2];
    // SAFETY: the entries lie behind the control block, in what is that thread's.
    unsafe {
        // The length comes before the vector, the generation first in it.
        entries.write([template.modules.len() - 1, 0]);
        entries.add(1).write([usize::MAX >> 1, 0]);
        for (number, below) in template.modules.iter().enumerate().skip(1) {
            let value = if *below == 0 { UNALLOCATED } else { thread_pointer - below };
            entries.add(1 + number).write([value, 0]);
        }
    }
    entries as usize + ENTRY
}
