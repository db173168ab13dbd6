//! The swap devices of a job as a table, in the form that swapon(8) of util-linux gives it, or as
//! JSON.

use crate::args::{Column, Columns, SwaponArgs};
use crate::control::protocol::{Reply, Request, SwapDevice};
use crate::control::{self, Found, unexpected};
use crate::failure::Failure;
use crate::report::printable;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, Write};

/// What a device has in it.
fn value(column: Column, device: &SwapDevice, in_bytes: bool) -> Value {
    let size = |bytes: u64| if in_bytes { json!(bytes) } else { json!(human(bytes)) };
    match column {
        Column::Name => json!(device.path),
        Column::Type => json!(kind(device)),
        Column::Size => size(device.size_bytes),
        Column::Used => size(device.used_bytes),
        Column::Prio => json!(device.priority),
        Column::Uuid => json!(device.uuid),
        Column::Label => json!(device.label),
    }
}

fn text(column: Column, device: &SwapDevice, in_bytes: bool) -> String {
    match value(column, device, in_bytes) {
        Value::Null => String::new(),
        Value::String(text) => printable(&text),
        figure => figure.to_string(),
    }
}

/// Shows the devices; returns the exit status.
pub fn run(args: &SwaponArgs, found: &Found) -> Result<u8, Failure> {
    let devices = match control::ask(found, Request::Swaps)? {
        Reply::Swaps(devices) => devices,
        other => return Err(unexpected(other)),
    };
    let columns = match &args.show {
        Some(Columns(columns)) => columns.clone(),
        None if args.output_all => Column::ALL.to_vec(),
        None => Column::DEFAULT.to_vec(),
    };
    let text = match args {
        SwaponArgs { summary: true, .. } => summary(&devices),
        SwaponArgs { json: true, .. } => as_json(&devices, &columns, args.bytes),
        _ => table(&devices, &columns, args.bytes, !args.noheadings, args.raw),
    };
    // A closed standard output is no reason to fail.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(0)
}

/// As /proc/swaps names it.
fn kind(device: &SwapDevice) -> &str {
    if device.kind == "block" { "partition" } else { &device.kind }
}

/// Lines of columns of one width each, or with one space between them if they are `raw`. Nothing if
/// there are no devices.
fn table(
    devices: &[SwapDevice],
    columns: &[Column],
    in_bytes: bool,
    headings: bool,
    raw: bool,
) -> String {
    if devices.is_empty() {
        return String::new();
    }
    let head = headings.then(|| columns.iter().map(|column| column.name().to_owned()).collect());
    let row = |device: &SwapDevice| {
        columns.iter().map(|column| text(*column, device, in_bytes)).collect()
    };
    let lines: Vec<Vec<String>> = head.into_iter().chain(devices.iter().map(row)).collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(|at| if raw { 0 } else { width(at) }).collect();
    let mut text = String::new();
    for line in &lines {
        let cells =
            line.iter().zip(columns).zip(&widths).map(|((cell, column), width)| {
                match column.is_figure() {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                }
            });
        let cells = cells.collect::<Vec<_>>().join(" ");
        writeln!(text, "{}", if raw { &cells } else { cells.trim_end() })
            .expect("strings take everything");
    }
    text
}

/// As /proc/swaps has it: sizes in KiB.
fn summary(devices: &[SwapDevice]) -> String {
    let mut text = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n".to_owned();
    let tabs = |cell: String| if cell.len() < 8 { cell + "\t\t" } else { cell + "\t" };
    for device in devices {
        let [size, used] =
            [device.size_bytes, device.used_bytes].map(|bytes| tabs((bytes >> 10).to_string()));
        let (name, kind) = (printable(&device.path), tabs(kind(device).to_owned()));
        writeln!(text, "{name:<39} {kind}{size}{used}{}", device.priority)
            .expect("strings take everything");
    }
    text
}

/// A device with the columns that were chosen, in their order.
struct ShownDevice<'a> {
    device: &'a SwapDevice,
    columns: &'a [Column],
    in_bytes: bool,
}

impl Serialize for ShownDevice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.columns.len()))?;
        for column in self.columns {
            map.serialize_entry(
                &column.name().to_lowercase(),
                &value(*column, self.device, self.in_bytes),
            )?;
        }
        map.end()
    }
}

/// As the tools of util-linux print their tables: an object with a list of rows.
fn as_json(devices: &[SwapDevice], columns: &[Column], in_bytes: bool) -> String {
    #[derive(serde::Serialize)]
    struct Table<'a> {
        swapdevices: Vec<ShownDevice<'a>>,
    }
    let table = Table {
        swapdevices: devices
            .iter()
            .map(|device| ShownDevice { device, columns, in_bytes })
            .collect(),
    };
    let mut json = Vec::new();
    let indented = serde_json::ser::PrettyFormatter::with_indent(b"   ");
    table
        .serialize(&mut serde_json::Serializer::with_formatter(&mut json, indented))
        .expect("rows are text and numbers");
    String::from_utf8(json).expect("JSON is UTF-8") + "\n"
}

/// A size as util-linux writes it: in the largest unit of which there is one, with a decimal where
/// it is not zero.
fn human(bytes: u64) -> String {
    const UNITS: [char; 7] = ['B', 'K', 'M', 'G', 'T', 'P', 'E'];
    let unit = bytes.checked_ilog2().unwrap_or(0) as usize / 10;
    let tenths = (u128::from(bytes) * 10 + (1 << (10 * unit)) / 2) >> (10 * unit);
    match tenths % 10 {
        _ if unit == 0 => format!("{bytes}B"),
        0 => format!("{}{}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth}{}", tenths / 10, UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<SwapDevice> {
        let file = SwapDevice {
            path: "/var/swap/a".to_owned(),
            kind: "file".to_owned(),
            size_bytes: 3 << 29,
            used_bytes: 10 << 20,
            priority: 5,
            uuid: Some("00112233-4455-4677-8899-aabbccddeeff".to_owned()),
            label: Some("fast disk".to_owned()),
            ..SwapDevice::default()
        };
        let block = SwapDevice {
            id: 1,
            path: "/dev/sdb".to_owned(),
            kind: "block".to_owned(),
            priority: -2,
            ..SwapDevice::default()
        };
        vec![file, block]
    }

    #[test]
    fn the_table_is_laid_out_as_that_of_util_linux() {
        let table = |columns: &[Column], in_bytes, headings, raw| {
            table(&devices(), columns, in_bytes, headings, raw)
        };
        let expected = "\
NAME        TYPE      SIZE USED PRIO
/var/swap/a file      1.5G  10M    5
/dev/sdb    partition   0B   0B   -2
";
        assert_eq!(table(&Column::DEFAULT, false, true, false), expected);
        assert_eq!(table(&[Column::Prio, Column::Label], true, false, false), " 5 fast disk\n-2\n");
        let raw = "NAME SIZE UUID\n/var/swap/a 1610612736 \
                   00112233-4455-4677-8899-aabbccddeeff\n/dev/sdb 0 \n";
        assert_eq!(table(&[Column::Name, Column::Size, Column::Uuid], true, true, true), raw);
        assert_eq!(super::table(&[], &Column::DEFAULT, false, true, false), "");
    }

    #[test]
    fn json_has_the_columns_in_their_order() {
        let columns = [Column::Name, Column::Used, Column::Prio, Column::Label];
        let text = as_json(&devices(), &columns, true);
        let expected = r#"{
   "swapdevices": [
      {
         "name": "/var/swap/a",
         "used": 10485760,
         "prio": 5,
         "label": "fast disk"
      },
"#;
        assert!(text.starts_with(expected), "{text}");
        let value: Value = serde_json::from_str(&as_json(&devices(), &columns, false)).unwrap();
        assert_eq!(value["swapdevices"][0]["used"], "10M");
        assert_eq!(value["swapdevices"][1]["label"], Value::Null);
        let none: Value = serde_json::from_str(&as_json(&[], &columns, false)).unwrap();
        assert_eq!(none, json!({ "swapdevices": [] }));
    }

    #[test]
    fn the_summary_is_that_of_proc_swaps() {
        let text = summary(&devices());
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["Filename", "Type", "Size", "Used", "Priority"]);
        assert_eq!(lines[1], ["/var/swap/a", "file", "1572864", "10240", "5"]);
        assert_eq!(lines[2], ["/dev/sdb", "partition", "0", "0", "-2"]);
    }

    #[test]
    fn sizes_have_one_letter() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1K"),
            (1536, "1.5K"),
            (10 << 20, "10M"),
            ((10 << 20) + 60_000, "10.1M"),
            (1 << 40, "1T"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }
}
