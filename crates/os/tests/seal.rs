//! A sealed process makes no engine threads: a filter of system calls for all threads might end it for one. In a process of its own, as
//! that is for all of it.

use overspill_os::{Errno, thread};
use std::sync::mpsc;

#[test]
fn a_sealed_process_makes_no_threads() {
    let (send, ran) = mpsc::channel();
    let start = || {
        let send = send.clone();
        thread::spawn(c"other", move || send.send(()).unwrap())
    };
    start().unwrap();
    assert!(thread::seal());
    assert_eq!(start(), Err(Errno::PERM));
    assert_eq!(ran.iter().take(1).count(), 1, "what was made before runs");
    assert!(ran.try_recv().is_err());
    thread::unseal();
    start().unwrap();
    ran.recv().unwrap();
    // Whoever seals second is not the one to unseal.
    assert!(thread::seal() && !thread::seal());
    assert_eq!(start(), Err(Errno::PERM));
    // The child of a fork needs threads of its own.
    thread::reset_in_child();
    start().unwrap();
    ran.recv().unwrap();
}
