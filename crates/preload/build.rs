//! Linker flags of the preload library.

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
}
