//! Compiles the load, which is a program of its own in C.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let load = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("load");
    // What rustc links with is there, and compiles C.
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rerun-if-changed=load");
    let status = Command::new(&compiler)
        .args(["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&load)
        .args(["load/load.c", "load/places.c", "load/work.c"])
        .status()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    assert!(status.success(), "{} cannot compile the load", compiler.display());
}
