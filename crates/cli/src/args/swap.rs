//! The options of `overspill swapon` and `overspill swapoff`, as swapon(8) of util-linux has them.

use super::numbers::parse_pid;
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args};
use overspill::config::{Discard, Label, SwapSpec};

/// A column of the table of `overspill swapon --show`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// Its path.
    Name,
    /// Its kind.
    Type,
    /// Its size.
    Size,
    /// What of it is in use.
    Used,
    /// Its priority.
    Prio,
    /// Its UUID.
    Uuid,
    /// Its label.
    Label,
}

impl Column {
    /// All.
    pub const ALL: [Column; 7] = {
        use Column::*;
        [Name, Type, Size, Used, Prio, Uuid, Label]
    };
    /// Those of a table for which none are named.
    pub const DEFAULT: [Column; 5] = {
        use Column::*;
        [Name, Type, Size, Used, Prio]
    };

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Column::Name => "NAME",
            Column::Type => "TYPE",
            Column::Size => "SIZE",
            Column::Used => "USED",
            Column::Prio => "PRIO",
            Column::Uuid => "UUID",
            Column::Label => "LABEL",
        }
    }

    /// Whether it has figures.
    pub fn is_figure(self) -> bool {
        matches!(self, Column::Size | Column::Used | Column::Prio)
    }
}

/// Exit status of `overspill swapoff` for a mistake on the command line, as of swapoff(8).
pub const SWAPOFF_USAGE: u8 = 16;

/// `overspill swapon`.
#[derive(Debug, Args)]
pub struct SwaponArgs {
    /// The job: the process of its `overspill run`, or any process that this started [default, to
    /// show: the only one of yours]
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,

    /// Priority, 0 to 32767; higher is filled first; -1: after those that the job has
    #[arg(short, long, value_name = "PRIO", allow_negative_numbers = true)]
    #[arg(value_parser = parse_priority)]
    pub priority: Option<i32>,

    /// Discard parts of the device before they are first used (once), or also when nothing is left
    /// in them (pages)
    #[arg(
        short,
        long,
        value_name = "POLICY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "pages"
    )]
    #[arg(value_parser = PossibleValuesParser::new(["once", "pages"]))]
    pub discard: Option<String>,

    /// Options as in fstab: pri=PRIO, discard, discard=once, discard=pages
    #[arg(short, long, value_name = "LIST", value_parser = parse_options)]
    pub options: Option<Options>,

    /// A name to tell the device by, as mkswap -L gives it
    #[arg(short = 'L', long, value_name = "LABEL", value_parser = parse_label)]
    pub label: Option<Label>,

    /// Show the devices, with these columns: NAME, TYPE, SIZE, USED, PRIO, UUID, LABEL [default:
    /// the first five]
    #[arg(
        long,
        value_name = "COLUMNS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    #[arg(value_parser = parse_columns, conflicts_with_all = ["device", "summary"])]
    pub show: Option<Columns>,

    /// Show the devices with all columns
    #[arg(long, conflicts_with_all = ["device", "show", "summary"])]
    pub output_all: bool,

    /// Show the devices in the form of /proc/swaps
    #[arg(short, long, conflicts_with_all = ["device", "json"])]
    pub summary: bool,

    /// Show JSON
    #[arg(short = 'J', long, conflicts_with_all = ["device", "raw"])]
    pub json: bool,

    /// Show sizes in bytes
    #[arg(long, conflicts_with = "device")]
    pub bytes: bool,

    /// Show no headings
    #[arg(long, conflicts_with = "device")]
    pub noheadings: bool,

    /// Show columns without aligning them
    #[arg(long, conflicts_with = "device")]
    pub raw: bool,

    /// Say what is done
    #[arg(short, long)]
    pub verbose: bool,

    /// The devices: a directory, a file, a block device, or ram:SIZE, as with `overspill run
    /// --swap`
    #[arg(value_name = "PATH[:SIZE][,KEY=VALUE...]", value_parser = parse_device, requires = "pid")]
    pub device: Vec<SwapSpec>,
}

/// `overspill swapoff`.
#[derive(Debug, Args)]
pub struct SwapoffArgs {
    /// The job: the process of its `overspill run`, or any process that this started
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub pid: u32,

    /// All devices of the job
    #[arg(short, long, conflicts_with_all = ["label", "uuid", "device"])]
    pub all: bool,

    /// The device of that label; may be given more than once
    #[arg(short = 'L', value_name = "LABEL", action = ArgAction::Append)]
    pub label: Vec<String>,

    /// The device of that UUID; may be given more than once
    #[arg(short = 'U', value_name = "UUID", action = ArgAction::Append)]
    pub uuid: Vec<String>,

    /// Say what is done, and every second how far it is
    #[arg(short, long)]
    pub verbose: bool,

    /// The devices: a path, a label or a UUID each; LABEL=NAME and UUID=NAME say which it is
    #[arg(value_name = "PATH|LABEL|UUID", required_unless_present_any = ["all", "label", "uuid"])]
    pub device: Vec<String>,
}

/// What `-o` says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The priority; -1 is none.
    pub priority: Option<i32>,
    /// When parts are discarded.
    pub discard: Option<Discard>,
}

/// Columns of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Columns(pub Vec<Column>);

fn parse_priority(text: &str) -> Result<i32, String> {
    let in_range = |prio: &i32| (-1..=SwapSpec::PRIO_MAX.into()).contains(prio);
    let prio = text.parse().ok().filter(in_range);
    prio.ok_or_else(|| format!("'{text}' is not a priority: it is -1 to {}", SwapSpec::PRIO_MAX))
}

fn parse_options(list: &str) -> Result<Options, String> {
    let mut options = Options::default();
    for item in list.split(',').filter(|item| !item.is_empty()) {
        match item.split_once('=').unwrap_or((item, "")) {
            ("pri", value) => {
                options.priority = Some(parse_priority(value)?);
            }
            ("discard", "" | "pages") => options.discard = Some(Discard::Pages),
            ("discard", "once") => options.discard = Some(Discard::Once),
            // What fstab says to others.
            ("defaults" | "sw" | "nofail", "") => {}
            _ => {
                return Err(format!(
                    "'{item}' is not an option: choose from pri=PRIO, discard, discard=once, \
                     discard=pages"
                ));
            }
        }
    }
    Ok(options)
}

fn parse_label(text: &str) -> Result<Label, String> {
    text.parse().map_err(|bad: overspill::config::BadSwap| bad.to_string())
}

fn parse_columns(list: &str) -> Result<Columns, String> {
    if list.is_empty() {
        return Ok(Columns(Column::DEFAULT.to_vec()));
    }
    let column = |name: &str| {
        let found = Column::ALL.into_iter().find(|column| column.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let names = Column::ALL.map(Column::name).join(", ");
            format!("'{name}' is not a column: choose from {names}")
        })
    };
    list.split(',').map(column).collect::<Result<_, _>>().map(Columns)
}

fn parse_device(text: &str) -> Result<SwapSpec, String> {
    text.parse().map_err(|bad: overspill::config::BadSwap| bad.to_string())
}

impl SwaponArgs {
    /// The devices with what the options say of all of them. What is said with a path counts for it
    /// alone, and before these; `-o` counts before the others.
    pub fn devices(&self) -> Vec<SwapSpec> {
        let options = self.options.clone().unwrap_or_default();
        let priority =
            options.priority.or(self.priority).and_then(|priority| u16::try_from(priority).ok());
        let by_option = self
            .discard
            .as_deref()
            .map(|policy| if policy == "once" { Discard::Once } else { Discard::Pages });
        let discard = options.discard.or(by_option).unwrap_or_default();
        let with_options = |spec: &SwapSpec| SwapSpec {
            prio: spec.prio.or(priority),
            discard: if spec.discard == Discard::Off { discard } else { spec.discard },
            label: spec.label.clone().or_else(|| self.label.clone()),
            ..spec.clone()
        };
        self.device.iter().map(with_options).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command, exit_status, try_parse};
    use std::ffi::OsString;

    fn parse(args: &str) -> Result<Command, clap::Error> {
        try_parse(["overspill"].into_iter().chain(args.split(' ')).map(OsString::from))
            .map(|Cli { command }| command)
    }

    fn swapon(args: &str) -> SwaponArgs {
        match parse(&format!("swapon {args}")) {
            Ok(Command::Swapon(args)) => args,
            other => panic!("{args}: {other:?}"),
        }
    }

    #[test]
    fn options_are_those_of_util_linux() {
        let devices = |args: &str| -> Vec<String> {
            swapon(&format!("--pid 7 {args}")).devices().iter().map(ToString::to_string).collect()
        };
        assert_eq!(devices("/a:1G"), ["/a:1073741824"]);
        assert_eq!(devices("-p 5 /a,prio=3 /b"), ["/a,prio=3", "/b,prio=5"]);
        assert_eq!(devices("-p -1 /a"), ["/a"]);
        assert_eq!(devices("-d /a,discard=once /b"), ["/a,discard=once", "/b,discard=pages"]);
        assert_eq!(devices("--discard=once --label fast /a"), ["/a,label=fast,discard=once"]);
        assert_eq!(
            devices("-o pri=9,discard -p 5 -L x ram:4M"),
            ["ram:4194304,prio=9,label=x,discard=pages"]
        );
        assert_eq!(devices("-o discard=once,pri=-1,nofail -p 5 --discard /a"), ["/a,discard=once"]);
        for refused in [
            "--pid 7 -p 32768 /a",
            "--pid 7 -p -2 /a",
            "--pid 7 --discard=often /a",
            "--pid 7 -o size=3 /a",
            "--pid 7 -L seventeen-letters /a",
            "--pid 7 /a,/b",
            "--pid 7 --show /a",
            "--pid 7 --raw --json",
            "--show=NAME,COLOUR",
            "/a",
        ] {
            let error = parse(&format!("swapon {refused}")).unwrap_err();
            assert_eq!(exit_status(&error, "swapon"), 2, "{refused}");
        }
    }

    #[test]
    fn columns_are_chosen_by_name() {
        assert_eq!(swapon("--show").show, Some(Columns(Column::DEFAULT.to_vec())));
        let some = swapon("--show=prio,NAME --bytes --noheadings --json --pid 3");
        assert_eq!(some.show, Some(Columns(vec![Column::Prio, Column::Name])));
        assert!(some.bytes && some.noheadings && some.json && some.pid == Some(3));
        assert!(swapon("-s").summary && swapon("--output-all --raw").raw);
        let error = parse("swapon --show=COLOUR").unwrap_err().to_string();
        assert!(error.contains("choose from NAME, TYPE, SIZE, USED, PRIO, UUID, LABEL"), "{error}");
    }

    #[test]
    fn mistakes_of_swapoff_have_a_status_of_their_own() {
        let Ok(Command::Swapoff(args)) = parse("swapoff -v --pid 7 -L fast -U 5 /a LABEL=x") else {
            panic!("it is right")
        };
        assert_eq!(
            (args.pid, args.label, args.uuid),
            (7, vec!["fast".to_owned()], vec!["5".to_owned()])
        );
        assert!(args.verbose && args.device == ["/a", "LABEL=x"]);
        assert!(matches!(
            parse("swapoff --pid 7 -a"),
            Ok(Command::Swapoff(SwapoffArgs { all: true, .. }))
        ));
        for refused in
            ["--pid 7", "-a", "--pid 7 -a /a", "--pid 7 -a -L x", "--pid 0 /a", "--pid 7 -x"]
        {
            let error = parse(&format!("swapoff {refused}")).unwrap_err();
            assert_eq!(exit_status(&error, "swapoff"), 16, "{refused}");
        }
        assert_eq!(exit_status(&parse("swapoff --help").unwrap_err(), "swapoff"), 0);
    }
}
