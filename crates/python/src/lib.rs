//! The half of the Python module `overspill` that is in Rust: memory of a pool as numpy's arrays
//! get it.
//!
//! numpy asks an allocator for the memory of an array, and keeps the allocator with the array
//! (NEP 49). So an array of a pool is an ordinary one: nothing in it knows of the pool but its
//! allocator, which gives the memory back, and keeps the pool alive until then. What users see is
//! in Python, in `python/overspill`.
//!
//! From the ground up: `blocks`, the memory that is given out; `fork`; `owner`, who keeps a
//! pool open; `numpy`, the allocator; `failure`, exceptions; `pool`, the class.

mod blocks;
mod failure;
mod fork;
mod numpy;
mod owner;
mod pool;

/// The engine of `overspill`.
#[pyo3::pymodule]
mod _engine {
    #[pymodule_export]
    use crate::numpy::set_handler;
    #[pymodule_export]
    use crate::pool::Pool;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
        crate::numpy::import(module.py())?;
        crate::fork::register()
    }
}
