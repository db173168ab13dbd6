//! Linker flags of the preload library.

use std::ffi::{CStr, c_char};
use std::path::Path;

/// What Rust's runtime finds when it asks for the unwinder's shared library: the static one. Every
/// process of a job would load the other, which also takes its time to look at the processor.
const UNWINDER: &str = "GROUP ( libgcc_eh.a libgcc.a )\n";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR").expect("cargo says where to put what is made");
    std::fs::write(Path::new(&out).join("libgcc_s.so"), UNWINDER)
        .expect("the directory can be written");
    println!("cargo:rustc-link-search=native={out}");
    // initfirst: our constructor runs before all others, so that no library allocates or registers
    // a fork handler before us. nodelete: our functions are never unmapped, not even by a dlclose.
    // Bsymbolic-functions: this library calls its own functions, also where the program's
    // executable has some of the same names: a malloc of its own would get the requests of the
    // codecs, which come while the program may hold its lock.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst,-z,nodelete,-Bsymbolic-functions");
    // What a process needs at its beginning lies together.
    let layout =
        Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("as above")).join("start.ld");
    println!("cargo:rerun-if-changed={}", layout.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}", layout.display());
    // Three thousand addresses are relocated: as a bitmap they are 1 KiB to read, not 72. This
    // glibc's loader knows it; a library that was linked with an older one does without.
    if glibc() >= (2, 36) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of the C library that the library is linked with, as far as it is told.
fn glibc() -> (u32, u32) {
    unsafe extern "C" {
        fn gnu_get_libc_version() -> *const c_char;
    }
    // SAFETY: a string of the C library's, for ever.
    let version = unsafe { CStr::from_ptr(gnu_get_libc_version()) }.to_string_lossy();
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
