//! The client of a redis-server: fills it, has redis-benchmark read at random, and reads everything
//! back.

use crate::measure::host::entry;
use crate::measure::{Failing, Failure, fail};
use overspill_bench::contents::{Contents, WORDS};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes of a value: four to a page, with what the allocator and the server have beside it.
const VALUE_BYTES: usize = 992;
/// What a key with its value takes of the server's memory, about.
const KEY_BYTES: u64 = 1120;
/// Commands that are sent at once.
const PIPELINE: u64 = 64;
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

#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Of the reads at random.
    pub elapsed: Duration,
    /// Processor time of the server meanwhile, in user mode and in the kernel, in seconds.
    pub user_s: f64,
    /// See `user_s`.
    pub sys_s: f64,
    /// Nanoseconds of a request: the median, and what all but one in a hundred took at most.
    pub p50_ns: f64,
    /// See `p50_ns`.
    pub p99_ns: f64,
    /// Of all values, read back afterwards.
    pub checksum: u32,
}

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
        const FAILED: &str = "the connection to redis-server failed";
        // 1. Values, in sequence.
        let mut server = self.connect(is_up)?;
        self.each(&mut server, set, |server| server.expect("+OK")).failing(FAILED)?;
        // 2. As many reads at random as there are keys.
        let before = server.cpu_s().failing(FAILED)?;
        let began = Instant::now();
        let text = self.benchmark()?;
        let elapsed = began.elapsed();
        let after = server.cpu_s().failing(FAILED)?;
        let [p50_ns, p99_ns] = percentiles(&text).ok_or_else(|| {
            Failure::new(format!("redis-benchmark printed no percentiles: {}", text.trim()))
        })?;
        // 3. Every value is what it was.
        let mut checksum = crc32fast::Hasher::new();
        let get = |batch: &mut Vec<u8>, key| command(batch, &[b"GET", name(key).as_bytes()]);
        self.each(&mut server, get, |server| server.bulk().map(|value| checksum.update(&value)))
            .failing(FAILED)?;
        // 4. The answer to this is the end of the connection.
        let mut batch = Vec::new();
        command(&mut batch, &[b"SHUTDOWN", b"NOSAVE"]);
        server.send(&batch).failing(FAILED)?;
        let [user_s, sys_s] = [after[0] - before[0], after[1] - before[1]];
        Ok(Served { elapsed, user_s, sys_s, p50_ns, p99_ns, checksum: checksum.finalize() })
    }

    /// Sends a command about each key, many at once, and takes each answer.
    fn each(
        &self,
        server: &mut Connection,
        command: impl Fn(&mut Vec<u8>, u64),
        mut answer: impl FnMut(&mut Connection) -> io::Result<()>,
    ) -> io::Result<()> {
        for first in (0..self.keys).step_by(PIPELINE as usize) {
            let keys = first..(first + PIPELINE).min(self.keys);
            let mut batch = Vec::new();
            keys.clone().for_each(|key| command(&mut batch, key));
            server.send(&batch)?;
            keys.into_iter().try_for_each(|_| answer(server))?;
        }
        Ok(())
    }

    fn connect(&self, is_up: impl Fn() -> bool) -> Result<Connection, Failure> {
        let began = Instant::now();
        loop {
            match UnixStream::connect(&self.socket).and_then(Connection::new) {
                Ok(server) => return Ok(server),
                Err(_) if is_up() && began.elapsed() < PATIENCE => sleep(Duration::from_millis(5)),
                Err(error) => {
                    fail!("redis-server does not answer: {error}");
                }
            }
        }
    }

    /// What redis-benchmark prints.
    fn benchmark(&self) -> Result<String, Failure> {
        let keys = self.keys.to_string();
        let mut line = Command::new("redis-benchmark");
        line.args(["-s", &self.socket, "--csv", "-n", &keys, "-r", &keys]);
        line.args(["GET", "key:__rand_int__"]);
        let output = line.stdin(Stdio::null()).output();
        let output = output.failing("redis-benchmark cannot be started")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            fail!("redis-benchmark failed ({}): {}", output.status, said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The key of a number, as redis-benchmark makes it.
fn name(key: u64) -> String {
    format!("key:{key:012}")
}

/// Appends a command that sets a key to its value.
fn set(batch: &mut Vec<u8>, key: u64) {
    let mut words = [0; WORDS];
    Contents::Heap.fill(&mut words, key);
    let value: Vec<u8> =
        words.iter().flat_map(|word| word.to_le_bytes()).take(VALUE_BYTES).collect();
    command(batch, &[b"SET", name(key).as_bytes(), &value]);
}

/// Appends a command in the protocol of Redis (RESP2).
fn command(batch: &mut Vec<u8>, parts: &[&[u8]]) {
    batch.extend(format!("*{}\r\n", parts.len()).bytes());
    for part in parts {
        batch.extend(format!("${}\r\n", part.len()).bytes());
        batch.extend_from_slice(part);
        batch.extend(b"\r\n");
    }
}

/// Nanoseconds of the median and the 99th percentile, of what redis-benchmark prints as CSV in
/// milliseconds.
fn percentiles(csv: &str) -> Option<[f64; 2]> {
    let fields = |line: &str| {
        line.split("\",\"").map(|field| field.trim_matches('"').to_owned()).collect::<Vec<_>>()
    };
    let mut lines = csv.lines();
    let (head, values) = (fields(lines.next()?), fields(lines.next()?));
    let of =
        |name: &str| values.get(head.iter().position(|field| field == name)?)?.parse::<f64>().ok();
    Some([of("p50_latency_ms")? * 1e6, of("p99_latency_ms")? * 1e6])
}

struct Connection(BufReader<UnixStream>);

impl Connection {
    /// One over which the server answers.
    fn new(stream: UnixStream) -> io::Result<Connection> {
        let mut connection = Connection(BufReader::with_capacity(1 << 16, stream));
        connection.send(b"*1\r\n$4\r\nPING\r\n")?;
        connection.expect("+PONG")?;
        Ok(connection)
    }

    fn send(&mut self, batch: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(batch)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn expect(&mut self, answer: &str) -> io::Result<()> {
        match self.line()? {
            line if line == answer => Ok(()),
            line => Err(io::Error::other(format!("it answered '{line}'"))),
        }
    }

    fn bulk(&mut self) -> io::Result<Vec<u8>> {
        let line = self.line()?;
        let len: usize = line
            .strip_prefix('$')
            .and_then(|len| len.parse().ok())
            .ok_or_else(|| io::Error::other(format!("it answered '{line}'")))?;
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value)?;
        value.truncate(len);
        Ok(value)
    }

    /// Processor time of the server so far, in user mode and in the kernel, in seconds.
    fn cpu_s(&mut self) -> io::Result<[f64; 2]> {
        let mut batch = Vec::new();
        command(&mut batch, &[b"INFO", b"cpu"]);
        self.send(&batch)?;
        let text = String::from_utf8_lossy(&self.bulk()?).into_owned();
        match (entry(&text, "used_cpu_user:"), entry(&text, "used_cpu_sys:")) {
            (Some(user), Some(sys)) => Ok([user, sys]),
            _ => Err(io::Error::other("it does not tell its processor time")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_the_protocol_says_and_values_follow_from_their_keys() {
        let mut batch = Vec::new();
        command(&mut batch, &[b"GET", b"k"]);
        assert_eq!(batch, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        let value = |key| {
            let mut batch = Vec::new();
            set(&mut batch, key);
            batch
        };
        assert!(value(1) == value(1) && value(1) != value(2));
        assert!(value(7).starts_with(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$992\r\n"));
    }

    #[test]
    fn percentiles_are_found_by_their_names() {
        let csv = "\"test\",\"rps\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\"\n\
                   \"GET key:__rand_int__\",\"9\",\"0.5\",\"1\",\"2.25\"\n";
        assert_eq!(percentiles(csv), Some([5e5, 2.25e6]));
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
