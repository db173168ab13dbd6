//! Linker flags of the preload library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // initfirst: our constructor runs before all others, so that no library allocates or registers a fork handler
    // before us. nodelete: our functions are never unmapped, not even by a dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst,-z,nodelete");
}
