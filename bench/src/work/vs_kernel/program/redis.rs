//! The client of a redis-server: fills it, has redis-benchmark read at random, and reads everything
//! back, all with the tools of Redis.

use crate::measure::*;
use overspill_bench::contents::Contents;
use serde::{Deserialize, Serialize};
use std::io::{self, BufWriter, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes of a value: four to a page, with what the allocator and the server have beside it.
const VALUE_BYTES: usize = 992;
/// What a key with its value takes of the server's memory, about.
const KEY_BYTES: u64 = 1120;
/// Values that are asked for at once.
const AT_ONCE: u64 = 64;
/// The longest path of a socket.
const PATH_MAX: usize = 100;
/// How long the server may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is to be asked of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    socket: String,
    keys: u64,
}

#[derive(Clone, Debug)]
pub struct Served {
    /// Of the reads at random.
    pub elapsed: Duration,
    /// Processor time of the server meanwhile, in user mode and in the kernel, in seconds.
    pub cpu_s: [f64; 2],
    /// Nanoseconds of a request: the median, and what all but one in a hundred took at most; of
    /// programs with a client.
    pub percentiles_ns: Vec<f64>,
    /// Of all values, read back afterwards.
    pub checksum: u32,
}

type Input = BufWriter<ChildStdin>;

impl Client {
    /// One that fills `size` bytes of a server that listens to `socket`.
    pub fn new(socket: String, size: u64) -> Result<Client, Failure> {
        if socket.len() > PATH_MAX {
            fail!("'{socket}' is too long for a socket: name another --dir");
        }
        Ok(Client { socket, keys: (size / KEY_BYTES).max(1) })
    }

    /// Does all of it, and ends the server. `is_up` tells whether the server is there at all.
    pub fn work(&self, is_up: impl Fn() -> bool) -> Result<Served, Failure> {
        self.wait(is_up)?;
        // 1. Values, in sequence. They are printed a line each later.
        let mut lines = crc32fast::Hasher::new();
        self.ask("redis-cli", &["--pipe", "--pipe-timeout", "0"], |input| {
            (0..self.keys).try_for_each(|key| {
                let page = Contents::Heap.page(key);
                lines.update(&page[..VALUE_BYTES]);
                lines.update(b"\n");
                set(input, key, &page[..VALUE_BYTES])
            })
        })?;
        // 2. As many reads at random as there are keys.
        let before = self.cpu_s()?;
        let began = Instant::now();
        let keys = self.keys.to_string();
        let reads = ["--csv", "-n", &keys, "-r", &keys, "GET", "key:__rand_int__"];
        let printed = self.ask("redis-benchmark", &reads, |_| Ok(()))?;
        let elapsed = began.elapsed();
        let after = self.cpu_s()?;
        let Some(percentiles_ns) = percentiles(&printed.text()) else {
            fail!("redis-benchmark printed no percentiles: {}", printed.text());
        };
        // 3. Every value is what it was.
        let values = self.ask("redis-cli", &[], |input| {
            (0..self.keys).step_by(AT_ONCE as usize).try_for_each(|first| {
                let keys = first..(first + AT_ONCE).min(self.keys);
                writeln!(input, "MGET {}", keys.map(name).collect::<Vec<_>>().join(" "))
            })
        })?;
        if values.checksum != lines.finalize() {
            fail!("redis-server gave back other values than it was given");
        }
        // 4. The end.
        self.ask("redis-cli", &["SHUTDOWN", "NOSAVE"], |_| Ok(()))?;
        let cpu_s = [0, 1].map(|mode| after[mode] - before[mode]);
        Ok(Served { elapsed, cpu_s, percentiles_ns, checksum: values.checksum })
    }

    /// Waits until the server answers.
    fn wait(&self, is_up: impl Fn() -> bool) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            match self.ask("redis-cli", &["PING"], |_| Ok(())) {
                Ok(printed) if printed.text() == "PONG" => return Ok(()),
                _ if is_up() && began.elapsed() < PATIENCE => sleep(Duration::from_millis(5)),
                Ok(printed) => fail!("redis-server does not answer: {}", printed.text()),
                Err(failure) => return Err(failure.during("redis-server does not answer")),
            }
        }
    }

    /// What a tool prints that works with the server; `tell` writes to its standard input.
    fn ask(
        &self,
        name: &str,
        args: &[&str],
        tell: impl FnOnce(&mut Input) -> io::Result<()> + Send,
    ) -> Result<Printed, Failure> {
        let mut tool = Command::new(name);
        tool.args(["-s", &self.socket]).args(args);
        tool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut tool = tool.spawn().failing(format_args!("{name} cannot be started"))?;
        let mut input = BufWriter::new(tool.stdin.take().expect("it is a pipe"));
        let stdout = tool.stdout.take();
        let printed = std::thread::scope(|scope| {
            // One that does not listen any more has failed, which its status tells.
            scope.spawn(move || _ = tell(&mut input).and_then(|()| input.flush()));
            Printed::of(stdout)
        });
        let ended = tool.wait_with_output().failing(format_args!("{name} cannot be waited for"))?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            fail!("{name} failed ({}): {} {}", ended.status, printed.text(), said.trim());
        }
        Ok(printed)
    }

    /// Processor time of the server so far, in user mode and in the kernel, in seconds.
    fn cpu_s(&self) -> Result<[f64; 2], Failure> {
        let text = self.ask("redis-cli", &["INFO", "cpu"], |_| Ok(()))?.text();
        match (entry(&text, "used_cpu_user:"), entry(&text, "used_cpu_sys:")) {
            (Some(user), Some(sys)) => Ok([user, sys]),
            _ => Err(Failure::new("redis-server does not tell its processor time")),
        }
    }
}

/// The key of a number, as redis-benchmark makes it.
fn name(key: u64) -> String {
    format!("key:{key:012}")
}

/// Writes a command that sets a key to its value in the protocol of Redis (RESP2): values hold any
/// bytes.
fn set(out: &mut impl Write, key: u64, value: &[u8]) -> io::Result<()> {
    let name = name(key);
    write!(out, "*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${}\r\n", name.len(), value.len())?;
    out.write_all(value)?;
    out.write_all(b"\r\n")
}

/// Nanoseconds of the median and the 99th percentile, of what redis-benchmark prints as CSV in
/// milliseconds.
fn percentiles(csv: &str) -> Option<Vec<f64>> {
    let fields = |line: &str| {
        line.split("\",\"").map(|field| field.trim_matches('"').to_owned()).collect::<Vec<_>>()
    };
    let mut lines = csv.lines();
    let (head, values) = (fields(lines.next()?), fields(lines.next()?));
    let of =
        |name: &str| values.get(head.iter().position(|field| field == name)?)?.parse::<f64>().ok();
    Some(vec![of("p50_latency_ms")? * 1e6, of("p99_latency_ms")? * 1e6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_found_by_their_names() {
        let csv = "\"test\",\"rps\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\"\n\
                   \"GET key:__rand_int__\",\"9\",\"0.5\",\"1\",\"2.25\"\n";
        assert_eq!(percentiles(csv), Some(vec![5e5, 2.25e6]));
        assert_eq!(percentiles("\"test\"\n"), None);
    }

    #[test]
    fn a_socket_has_a_name_that_sockets_can_have() {
        assert_eq!(Client::new("/a".to_owned(), 64 << 20).unwrap().keys, (64 << 20) / KEY_BYTES);
        assert!(
            Client::new("x".repeat(200), 1).unwrap_err().to_string().contains("name another --dir")
        );
    }
}
