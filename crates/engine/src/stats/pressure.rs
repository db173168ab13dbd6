//! Pressure-stall figures, in the form of the kernel's /proc/pressure/memory.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::fmt;

/// Seconds over which the shares are averaged, as the kernel's.
pub const AVG_SECONDS: [u64; 3] = [10, 60, 300];

/// For what share of the time something was stalled, and for how long in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stall {
    /// Averages over [`AVG_SECONDS`], newer time counting more, in hundredths of a percent.
    pub avg: [u64; AVG_SECONDS.len()],
    /// Microseconds since the process began.
    pub total_us: u64,
}

impl Stall {
    /// The higher of each figure.
    pub fn max(self, other: Stall) -> Stall {
        let avg = std::array::from_fn(|i| self.avg[i].max(other.avg[i]));
        Stall { avg, total_us: self.total_us.max(other.total_us) }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (seconds, avg) in AVG_SECONDS.iter().zip(self.avg) {
            write!(f, "avg{seconds}={}.{:02} ", avg / 100, avg % 100)?;
        }
        write!(f, "total={}", self.total_us)
    }
}

impl Serialize for Stall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Stall", AVG_SECONDS.len() + 1)?;
        for (name, avg) in ["avg10", "avg60", "avg300"].into_iter().zip(self.avg) {
            object.serialize_field(name, &(avg as f64 / 100.0))?;
        }
        object.serialize_field("total_us", &self.total_us)?;
        object.end()
    }
}

/// How much a process waits for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Pressure {
    /// Some thread waited: in a major fault, or for room.
    pub some: Stall,
    /// Some thread waited, and none got on meanwhile, as far as can be known.
    pub full: Stall,
}

impl Pressure {
    /// Cells that it takes in the table.
    pub(super) const CELLS: usize = 2 * (AVG_SECONDS.len() + 1);

    /// As it stands in the table.
    pub(super) fn cells(&self) -> [u64; Pressure::CELLS] {
        let Pressure { some, full } = self;
        let [[a, b, c], [d, e, f]] = [some.avg, full.avg];
        [some.total_us, a, b, c, full.total_us, d, e, f]
    }

    /// From the table.
    pub(super) fn of_cells(cells: &[u64]) -> Pressure {
        let stall =
            |cells: &[u64]| Stall { avg: [cells[1], cells[2], cells[3]], total_us: cells[0] };
        Pressure { some: stall(&cells[..4]), full: stall(&cells[4..]) }
    }

    /// The higher of each figure: that of a job, of which its worst process is known, is at least
    /// that.
    pub fn max(self, other: Pressure) -> Pressure {
        Pressure { some: self.some.max(other.some), full: self.full.max(other.full) }
    }
}

/// The two lines of the kernel's file.
impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "some {}\nfull {}", self.some, self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_printed_as_the_kernel_does() {
        let some = Stall { avg: [1234, 5, 10_000], total_us: 7_000_000 };
        let pressure = Pressure { some, full: Stall::default() };
        assert_eq!(
            pressure.to_string(),
            "some avg10=12.34 avg60=0.05 avg300=100.00 total=7000000\nfull avg10=0.00 avg60=0.00 \
             avg300=0.00 total=0"
        );
        let json = serde_json::to_value(pressure).unwrap();
        let some = serde_json::json!({
            "avg10": 12.34, "avg60": 0.05, "avg300": 100.0, "total_us": 7_000_000
        });
        assert_eq!(json["some"], some);
        assert_eq!(Pressure::of_cells(&pressure.cells()), pressure);
        assert_eq!(pressure.max(Pressure::default()), pressure);
    }
}
