//! numpy's allocator (NEP 49): a table of functions in a capsule.
//!
//! numpy keeps the capsule with each array, and gives the array's memory back to it. Small blocks
//! are the C library's. A block is told by its address, so that it may change from one to the other
//! as it changes its size.
//!
//! The functions are called with the interpreter's lock held, and call nothing of Python's.

use crate::blocks::Blocks;
use crate::owner::Owner;
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

/// The name of numpy's capsules of allocators.
const NAME: &CStr = c"mem_handler";
/// Places in numpy's table of functions.
const FEATURE_VERSION: usize = 211;
const SET_HANDLER: usize = 304;
/// The version of the table, 1.22's, from which it has allocators.
const FIRST_WITH_HANDLER: c_uint = 0xf;

type SetHandler = unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject;
static SET: OnceLock<SetHandler> = OnceLock::new();

/// numpy's PyDataMem_Handler.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    context: *mut c_void,
    malloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// An allocator: what numpy sees of it comes first.
#[repr(C)]
struct Allocator {
    handler: Handler,
    owner: Arc<Owner>,
    /// Smallest blocks, in bytes, that come from the pool.
    least: usize,
}

/// Finds numpy's functions.
pub fn import(py: Python<'_>) -> PyResult<()> {
    let module = py.import("numpy._core.multiarray");
    let module = module.or_else(|_| py.import("numpy.core.multiarray"))?;
    let capsule = module.getattr("_ARRAY_API")?;
    // SAFETY: the object is alive; what is no such capsule is refused with an exception.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), ptr::null()) };
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    let table = table.cast::<*const c_void>();
    // SAFETY: 1. numpy's table has had this entry since 1.4, which is a function of this type;
    // 2. from this version on it has the other, of this type. It lives as long as the process.
    let set = unsafe {
        let version: unsafe extern "C" fn() -> c_uint =
            std::mem::transmute(*table.add(FEATURE_VERSION));
        (version() >= FIRST_WITH_HANDLER)
            .then(|| std::mem::transmute::<*const c_void, SetHandler>(*table.add(SET_HANDLER)))
    };
    let set = set.ok_or_else(|| PyImportError::new_err("overspill needs numpy 1.22 or later"))?;
    let _ = SET.set(set);
    Ok(())
}

/// Has new arrays of this thread, or asynchronous task, come from an allocator; from numpy's own
/// for `None`. Returns the one before.
#[pyfunction]
pub fn set_handler<'py>(
    py: Python<'py>,
    handler: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let raw = handler.map_or(ptr::null_mut(), Bound::as_ptr);
    // SAFETY: the object, if there is one, is alive.
    let is_handler = |raw| unsafe { ffi::PyCapsule_IsValid(raw, NAME.as_ptr()) } != 0 as c_int;
    if !raw.is_null() && !is_handler(raw) {
        return Err(PyTypeError::new_err("that is no allocator of numpy's"));
    }
    let set = SET.get().expect("numpy was imported with this module");
    // SAFETY: 1. numpy takes a capsule of this name, or null; 2. it returns a reference of ours, or
    // null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, set(raw)) }
}

/// An allocator over a pool, for blocks of `least` bytes and more, in a capsule.
pub fn handler(py: Python<'_>, owner: Arc<Owner>, least: usize) -> PyResult<Bound<'_, PyAny>> {
    let mut name = [0; 127];
    name.iter_mut().zip(b"overspill").for_each(|(to, from)| *to = *from as c_char);
    let handler =
        Handler { name, version: 1, context: ptr::null_mut(), malloc, calloc, realloc, free };
    let allocator = Box::into_raw(Box::new(Allocator { handler, owner, least }));
    // SAFETY: 1. the box is ours until the capsule has it; 2. `drop_allocator` takes it back.
    let capsule = unsafe {
        (*allocator).handler.context = allocator.cast();
        ffi::PyCapsule_New(allocator.cast(), NAME.as_ptr(), Some(drop_allocator))
    };
    if capsule.is_null() {
        // SAFETY: nobody has got it.
        drop(unsafe { Box::from_raw(allocator) });
    }
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

unsafe extern "C" fn drop_allocator(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is one of `handler`'s, and about to go: nobody has its pointer any more.
    unsafe {
        let allocator = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<Allocator>();
        drop(Box::from_raw(allocator));
    }
}

/// The allocator that numpy hands back.
///
/// # Safety
/// `context` is that of a [`Handler`] whose capsule lives.
unsafe fn allocator<'a>(context: *mut c_void) -> &'a Allocator {
    // SAFETY: the caller's promise.
    unsafe { &*context.cast::<Allocator>() }
}

impl Allocator {
    fn blocks(&self) -> &'static Blocks {
        self.owner.blocks()
    }

    /// A block of the pool, or null.
    fn take(&self, bytes: usize) -> *mut c_void {
        to_pointer(self.blocks().take(bytes))
    }
}

fn to_pointer(address: Option<usize>) -> *mut c_void {
    address.map_or(ptr::null_mut(), |address| address as *mut c_void)
}

unsafe extern "C" fn malloc(context: *mut c_void, bytes: usize) -> *mut c_void {
    // SAFETY: numpy keeps the capsule of what it calls.
    let allocator = unsafe { allocator(context) };
    if bytes >= allocator.least {
        return allocator.take(bytes);
    }
    // SAFETY: any size can be asked for.
    unsafe { libc::malloc(bytes.max(1)) }
}

unsafe extern "C" fn calloc(context: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: numpy keeps the capsule of what it calls.
    let allocator = unsafe { allocator(context) };
    match count.checked_mul(bytes) {
        None => ptr::null_mut(),
        Some(all) if all >= allocator.least => allocator.take(all),
        // SAFETY: any size can be asked for.
        Some(all) => unsafe { libc::calloc(1, all.max(1)) },
    }
}

unsafe extern "C" fn realloc(
    context: *mut c_void,
    block: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: numpy keeps the capsule of what it calls.
    let allocator = unsafe { allocator(context) };
    if allocator.blocks().contains(block as usize) {
        // It stays the pool's, however small.
        return to_pointer(allocator.blocks().resize(block as usize, bytes));
    }
    if bytes < allocator.least {
        // SAFETY: what is not the pool's is of the C library, or null.
        return unsafe { libc::realloc(block, bytes.max(1)) };
    }
    let larger = allocator.take(bytes);
    if !larger.is_null() && !block.is_null() {
        // SAFETY: 1. the block is of the C library, which says how much of it there is; 2. the
        // other is as large as what is copied, and new; 3. nobody uses the block any more.
        unsafe {
            let held = libc::malloc_usable_size(block).min(bytes);
            ptr::copy_nonoverlapping(block.cast::<u8>(), larger.cast(), held);
            libc::free(block);
        }
    }
    larger
}

unsafe extern "C" fn free(context: *mut c_void, block: *mut c_void, _bytes: usize) {
    // SAFETY: numpy keeps the capsule of what it calls.
    let allocator = unsafe { allocator(context) };
    if allocator.blocks().contains(block as usize) {
        return allocator.blocks().give_back(block as usize);
    }
    // SAFETY: what is not the pool's is of the C library, or null.
    unsafe { libc::free(block) }
}
