//! Refuses other platforms with one sentence, in place of errors from every line of assembly
//! language.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if (target("OS"), target("ARCH"), target("ENV"))
        != ("linux".into(), "x86_64".into(), "gnu".into())
    {
        println!(
            "cargo::error=overspill is for Linux on x86-64 with glibc: it has assembly language \
             and preloads functions of that C library"
        );
    }
}
