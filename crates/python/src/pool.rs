//! The class `_engine.Pool`.

use crate::blocks::Blocks;
use crate::owner::Owner;
use crate::{failure, numpy};
use overspill::config::{Config, Delivery, SwapList};
use overspill::units::Bytes;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Smallest window.
const WINDOW_LEAST: u64 = 64 << 30;

/// Address space for a pool, `None` for the engine's own choice, of which a process has room for a
/// hundred: that of a closed pool stays reserved, and a session makes and closes many.
fn window(config: &Config) -> Option<Bytes> {
    let sizes: Option<Vec<u64>> =
        config.swap.iter().map(|device| device.size.map(|size| size.0)).collect();
    let room = sizes?.into_iter().fold(config.memory.0, u64::saturating_add);
    let most = Config::WINDOW_MAX.0;
    let sized = || Bytes(room.saturating_mul(2).clamp(WINDOW_LEAST, most));
    (!config.counts_mappings()).then(sized)
}

/// A pool.
#[pyclass(module = "overspill._engine", frozen)]
pub struct Pool(Arc<Owner>);

#[pymethods]
impl Pool {
    #[new]
    fn new(
        py: Python<'_>,
        memory: &str,
        swap: &str,
        delivery: &str,
        settings: &str,
        overcommit: bool,
    ) -> PyResult<Pool> {
        let delivery = match delivery {
            "thread" => Delivery::Thread,
            "signal" => Delivery::Signal,
            _ => {
                let text = format!("delivery cannot be '{delivery}': it takes thread or signal");
                return Err(failure::value(text));
            }
        };
        let swap = swap.parse::<SwapList>().map_err(failure::value)?.0;
        let memory = memory.parse().map_err(failure::value)?;
        let mut config = Config { memory, swap, delivery, ..Config::default() };
        config.apply_settings(settings).map_err(failure::value)?;
        config.window = config.window.or_else(|| window(&config));
        let owner = py.detach(|| Owner::new(|| Blocks::open(config, overcommit)));
        Ok(Pool(Arc::new(owner.map_err(|error| failure::pool(error, delivery))?)))
    }

    /// An allocator for numpy over the pool, for blocks of `least` bytes and more.
    fn handler<'py>(&self, py: Python<'py>, least: usize) -> PyResult<Bound<'py, PyAny>> {
        numpy::handler(py, self.0.clone(), least)
    }

    /// Whether an address is the pool's.
    fn contains(&self, address: usize) -> bool {
        self.0.blocks().contains(address)
    }

    /// Blocks that are given out, their bytes, and how many more there is room for, if known.
    fn given(&self) -> (usize, usize, Option<usize>) {
        let given = self.0.blocks().given();
        (given.blocks, given.bytes, given.left)
    }

    /// Raises unless the pool is open.
    fn check_open(&self) -> PyResult<()> {
        self.0.blocks().pool()?;
        Ok(())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.close()).map_err(failure::in_use)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        let pool = self.0.blocks().pool()?;
        Ok(py.detach(|| pool.stats().counters))
    }

    fn set_memory(&self, py: Python<'_>, memory: &str) -> PyResult<()> {
        let memory: Bytes = memory.parse().map_err(failure::value)?;
        let blocks = self.0.blocks();
        let pool = blocks.pool()?;
        py.detach(|| pool.set_memory(memory))
            .map_err(|error| failure::pool(error, Delivery::default()))?;
        blocks.measure(memory);
        Ok(())
    }

    fn reclaim(&self, py: Python<'_>, memory: &str) -> PyResult<u64> {
        let memory: Bytes = memory.parse().map_err(failure::value)?;
        let pool = self.0.blocks().pool()?;
        Ok(py.detach(|| pool.reclaim(memory)).0)
    }

    fn swapon(&self, py: Python<'_>, device: &str) -> PyResult<()> {
        let devices = device.parse::<SwapList>().map_err(failure::value)?.0;
        let blocks = self.0.blocks();
        let pool = blocks.pool()?;
        let done = py.detach(|| devices.iter().try_for_each(|device| pool.swapon(device)));
        blocks.measure_devices();
        done.map_err(failure::swap)
    }

    /// Returns how many pages were lost because they could not be read.
    fn swapoff(&self, py: Python<'_>, device: &str) -> PyResult<u64> {
        let blocks = self.0.blocks();
        let pool = blocks.pool()?;
        let mut interrupted = None;
        let done = py.detach(|| {
            pool.swapoff(device, |_| match Python::attach(|py| py.check_signals()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    interrupted = Some(error);
                    ControlFlow::Break(())
                }
            })
        });
        blocks.measure_devices();
        match (done, interrupted) {
            (Ok(evacuated), _) => Ok(evacuated.lost_pages),
            (Err(_), Some(error)) => Err(error),
            (Err(error), None) => Err(failure::swapoff(error)),
        }
    }
}
