//! A pool, made step by step.

use super::Pool;
use crate::config::{BadSetting, BadSwap, Config, Delivery, SwapList};
use crate::error::Error;
use crate::units::Bytes;

/// Makes a [`Pool`]: [`Pool::builder`]. What is wrong with a step is told by [`Builder::build`].
#[derive(Clone, Debug)]
#[must_use = "build makes the pool"]
pub struct Builder {
    /// Or the first text that cannot be read.
    config: Result<Config, BadText>,
}

#[derive(Clone, Debug)]
enum BadText {
    Swap(BadSwap),
    Setting(BadSetting),
}

impl From<BadText> for Error {
    fn from(bad: BadText) -> Error {
        match bad {
            BadText::Swap(bad) => bad.into(),
            BadText::Setting(bad) => bad.into(),
        }
    }
}

impl Default for Builder {
    /// A pool in signal delivery.
    fn default() -> Builder {
        Builder { config: Ok(Config { delivery: Delivery::Signal, ..Config::default() }) }
    }
}

impl Pool {
    /// Makes a pool step by step.
    ///
    /// ```
    /// # if !overspill_os::probe::probe().user_faults() { return Ok(()) }
    /// use overspill::Pool;
    ///
    /// let pool = Pool::builder().memory(16 << 20).swap("/var/tmp:1G").build()?;
    /// let region = pool.map(64 << 20)?;
    /// assert!(region.iter().all(|byte| *byte == 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Builder {
    fn with(mut self, step: impl FnOnce(&mut Config) -> Result<(), BadText>) -> Builder {
        if let Ok(config) = &mut self.config
            && let Err(bad) = step(config)
        {
            self.config = Err(bad);
        }
        self
    }

    /// The budget, in bytes, or as [`Bytes`] that were parsed.
    pub fn memory(self, memory: impl Into<Bytes>) -> Builder {
        self.with(|config| {
            config.memory = memory.into();
            Ok(())
        })
    }

    /// One more swap device, or several, as `overspill run --swap` takes them:
    /// `/fast:20G,prio=2,/slow`. Without any, pages are only compressed.
    pub fn swap(self, devices: &str) -> Builder {
        self.with(|config| {
            let SwapList(devices) = devices.parse().map_err(BadText::Swap)?;
            config.swap.extend(devices);
            Ok(())
        })
    }

    /// How faults are served; [`Delivery::Signal`] unless it is said.
    pub fn delivery(self, delivery: Delivery) -> Builder {
        self.with(|config| {
            config.delivery = delivery;
            Ok(())
        })
    }

    /// A setting by its name, with the value as text: one of [`SETTINGS`](crate::config::SETTINGS).
    ///
    /// ```
    /// # if !overspill_os::probe::probe().user_faults() { return Ok(()) }
    /// use overspill::Pool;
    ///
    /// let builder = Pool::builder().memory(16 << 20);
    /// let refused = builder.clone().setting("zswap.codec", "lzo").build().unwrap_err();
    /// assert_eq!(
    ///     refused.to_string(),
    ///     "setting zswap.codec cannot be 'lzo': it takes auto|lz4|zstd[:LEVEL]|none"
    /// );
    /// let pool = builder.setting("zswap.codec", "zstd:1").build()?;
    /// # Ok::<(), overspill::Error>(())
    /// ```
    pub fn setting(self, name: &str, value: &str) -> Builder {
        self.with(|config| {
            config.apply_settings(&format!("{name}={value}")).map_err(BadText::Setting)
        })
    }

    /// Makes the pool.
    ///
    /// # Errors
    /// See [`Error`]: each prints as one sentence that says what to do.
    pub fn build(self) -> Result<Pool, Error> {
        Pool::new(self.config?)
    }
}
