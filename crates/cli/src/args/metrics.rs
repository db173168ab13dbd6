//! The options of `overspill metrics`.

use super::numbers::parse_pid;
use super::values::parse_interval;
use clap::Args;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// `overspill metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// The job: the process of its `overspill run`, or any process that this started [default: all
    /// of yours]
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub pid: Option<u32>,

    /// Answer at a loopback address, such as 127.0.0.1:9979, or at a socket, such as ./metrics.sock
    #[arg(long, value_name = "ADDR", value_parser = parse_address, conflicts_with = "textfile")]
    pub listen: Option<Address>,

    /// Write a file for the textfile collector of node_exporter, such as
    /// /var/lib/prometheus/node-exporter/overspill.prom
    #[arg(long, value_name = "PATH", value_parser = parse_textfile)]
    pub textfile: Option<PathBuf>,

    /// Seconds between two times that the file is written [default: it is written once]
    #[arg(value_name = "INTERVAL", value_parser = parse_interval)]
    #[arg(requires = "textfile", conflicts_with = "listen")]
    pub interval: Option<Duration>,
}

/// Where metrics can be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A port of this machine alone.
    Port(SocketAddr),
    /// A socket with a name.
    Socket(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Port(address) => address.fmt(f),
            Address::Socket(path) => path.display().fmt(f),
        }
    }
}

/// node_exporter looks at the ends of names.
fn parse_textfile(text: &str) -> Result<PathBuf, String> {
    match text.ends_with(".prom") {
        true => Ok(text.into()),
        false => Err("node_exporter passes over names that do not end in .prom: name a file such \
                      as ./overspill.prom"
            .to_owned()),
    }
}

fn parse_address(text: &str) -> Result<Address, String> {
    if text.contains('/') {
        return Ok(Address::Socket(text.into()));
    }
    let local =
        |port: &str| Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?));
    let address = match text.strip_prefix("localhost:") {
        Some(port) => local(port),
        None => text.parse().ok(),
    };
    match address {
        Some(address) if address.ip().is_loopback() => Ok(Address::Port(address)),
        Some(_) => Err("it can be reached from other machines, and nobody is asked who he is: \
                        name a loopback address, such as 127.0.0.1:9979, and have a proxy serve \
                        others"
            .to_owned()),
        None => Err("give a loopback address with a port, such as 127.0.0.1:9979, or the path of \
                     a socket, such as ./metrics.sock"
            .to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command, try_parse};
    use std::ffi::OsString;

    fn metrics(args: &str) -> Result<MetricsArgs, String> {
        let words = ["overspill", "metrics"].into_iter().chain(args.split_whitespace());
        match try_parse(words.map(OsString::from)) {
            Ok(Cli { command: Command::Metrics(args) }) => Ok(args),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn only_this_machine_is_answered() {
        let address = |text: &str| metrics(&format!("--listen {text}")).map(|args| args.listen);
        for (text, port) in
            [("127.0.0.1:1", "127.0.0.1:1"), ("localhost:0", "127.0.0.1:0"), ("[::1]:7", "[::1]:7")]
        {
            assert_eq!(address(text).unwrap().unwrap().to_string(), port);
        }
        assert_eq!(address("./a.sock"), Ok(Some(Address::Socket("./a.sock".into()))));
        for text in ["0.0.0.0:9979", "[::]:9979", "192.0.2.1:80"] {
            assert!(address(text).unwrap_err().contains("from other machines"), "{text}");
        }
        for text in ["9979", "localhost", "localhost:x", "metrics.sock", ":9979"] {
            assert!(address(text).unwrap_err().contains("or the path of a socket"), "{text}");
        }
    }

    #[test]
    fn an_interval_is_that_of_a_file() {
        let args = metrics("--pid 7 --textfile a.prom 15").unwrap();
        assert_eq!((args.pid, args.interval), (Some(7), Some(Duration::from_secs(15))));
        assert!(metrics("").unwrap().textfile.is_none());
        for refused in
            ["15", "--listen ./a 15", "--listen ./a --textfile b.prom", "--textfile a.prom 0"]
        {
            assert!(metrics(refused).is_err(), "{refused}");
        }
        assert!(metrics("--textfile x.txt").unwrap_err().contains("do not end in .prom"));
    }
}
