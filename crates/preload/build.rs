//! Linker flags of the preload library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // initfirst: our constructor runs before all others, so that no library allocates or registers
    // a fork handler before us. nodelete: our functions are never unmapped, not even by a dlclose.
    // Bsymbolic-functions: this library calls its own functions, also where the program's
    // executable has some of the same names: a malloc of its own would get the requests of the
    // codecs, which come while the program may hold its lock.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst,-z,nodelete,-Bsymbolic-functions");
}
