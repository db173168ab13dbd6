//! Answers those who ask for metrics over HTTP, at a port or a socket.
//!
//! One request a connection, which then is closed. As at the control socket, requests have a
//! longest length, connections a longest time, and there are only so many at once.

use super::text::Format;
use crate::args::Address;
use crate::failure::Failure;
use httparse::{EMPTY_HEADER, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Longest head of a request.
const HEAD_MAX: usize = 8 << 10;
/// Most header fields in it.
const FIELDS_MAX: usize = 64;
/// Longest time until the head is there, and for each part of the answer.
const CONNECTION_TIME: Duration = Duration::from_secs(2);
/// Most connections at once; more are closed unanswered. Each has a thread.
const CONNECTIONS_MAX: usize = 16;
/// How often it is asked whether to go on.
const LOOK: Duration = Duration::from_millis(500);
/// Pause when connections cannot be accepted, as without a free descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Port(TcpListener),
    /// A socket with this name, which goes with it.
    Socket(UnixListener, PathBuf),
}

/// One who asks.
trait Connection: Read + Write + Send {
    fn set_times(&self, read: Duration) -> io::Result<()>;
}

impl Connection for TcpStream {
    fn set_times(&self, read: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(CONNECTION_TIME))
    }
}

impl Connection for UnixStream {
    fn set_times(&self, read: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(CONNECTION_TIME))
    }
}

impl Listener {
    /// Listens there.
    pub fn open(address: &Address) -> Result<Listener, Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!("cannot listen at '{address}' ({error}): choose another place"))
        };
        match address {
            Address::Port(port) => TcpListener::bind(port).map(Listener::Port).map_err(failed),
            Address::Socket(path) => {
                check_free(path)?;
                let listener = bind(path).map_err(failed)?;
                Ok(Listener::Socket(listener, path.clone()))
            }
        }
    }

    /// Where it can be asked.
    pub fn shown(&self) -> String {
        match self {
            Listener::Port(listener) => {
                let port = listener.local_addr().map(|address| address.to_string());
                format!("http://{}/metrics", port.unwrap_or_default())
            }
            Listener::Socket(_, path) => path.display().to_string(),
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Listener::Port(listener) => Box::new(listener.accept()?.0),
            Listener::Socket(listener, _) => Box::new(listener.accept()?.0),
        })
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Port(listener) => listener.as_fd(),
            Listener::Socket(listener, _) => listener.as_fd(),
        }
    }

    /// Answers with what `metrics` says, for as long as `goes_on`.
    pub fn serve(&self, metrics: &(dyn Fn(Format) -> String + Sync), goes_on: impl Fn() -> bool) {
        let connections = &AtomicUsize::new(0);
        thread::scope(|scope| {
            while goes_on() {
                if !is_wanted(self.as_fd()) {
                    continue;
                }
                let Ok(mut connection) = self.accept() else {
                    thread::sleep(PAUSE);
                    continue;
                };
                if connections.fetch_add(1, Relaxed) >= CONNECTIONS_MAX {
                    connections.fetch_sub(1, Relaxed);
                    continue;
                }
                let started = thread::Builder::new().spawn_scoped(scope, move || {
                    // Whoever asks may have gone: nothing to be done about that.
                    let _ = converse(&mut *connection, metrics);
                    connections.fetch_sub(1, Relaxed);
                });
                if started.is_err() {
                    connections.fetch_sub(1, Relaxed);
                }
            }
        });
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Socket(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a socket can have that name: nobody listens there, and it is nobody's file.
fn check_free(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(other) if !other.file_type().is_socket() => Err(Failure::failed(format!(
            "'{shown}' is there already and is no socket: choose another name"
        ))),
        Ok(_) if UnixStream::connect(path).is_ok() => Err(Failure::failed(format!(
            "somebody listens at '{shown}' already: choose another name"
        ))),
        _ => Ok(()),
    }
}

/// A name in the same directory for what is to be called `path` when it is whole. Collectors of
/// metrics pass it over, for its ending.
pub fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

/// A socket for this user alone, which has its name when it listens. One that was left behind by a
/// command that was killed goes.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let unnamed = beside(path);
    let _ = fs::remove_file(&unnamed);
    let listener = UnixListener::bind(&unnamed)?;
    let named = fs::set_permissions(&unnamed, Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&unnamed, path));
    named.inspect_err(|_| drop(fs::remove_file(&unnamed)))?;
    Ok(listener)
}

/// Waits for somebody to ask; whether somebody does.
fn is_wanted(listener: BorrowedFd<'_>) -> bool {
    let time = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    let mut listener = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
    // A signal ends the wait as well.
    poll(&mut listener, Some(&time)).is_ok_and(|ready| ready > 0)
}

/// One request and its answer.
fn converse(
    connection: &mut dyn Connection,
    metrics: &(dyn Fn(Format) -> String + Sync),
) -> io::Result<()> {
    let head = read_head(connection)?;
    let (status, kind, body) = match HttpRequest::read(&head) {
        None => ("400 Bad Request", TEXT, "this is no request of HTTP\n".to_owned()),
        Some(HttpRequest { method: Method::Other, .. }) => {
            ("405 Method Not Allowed", TEXT, "ask with GET\n".to_owned())
        }
        Some(HttpRequest { is_metrics: false, .. }) => {
            ("404 Not Found", TEXT, "the metrics are at /metrics\n".to_owned())
        }
        Some(HttpRequest { format, .. }) => ("200 OK", format.content_type(), metrics(format)),
    };
    let length = body.len();
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head_only = HttpRequest::read(&head).is_some_and(|asked| asked.method == Method::Head);
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}\
         Connection: close\r\n\r\n{}",
        if head_only { "" } else { &body }
    );
    connection.write_all(answer.as_bytes())
}

const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Method {
    Get,
    Head,
    Other,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HttpRequest {
    method: Method,
    is_metrics: bool,
    format: Format,
}

impl HttpRequest {
    /// Nothing if it is no request.
    fn read(head: &[u8]) -> Option<HttpRequest> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        if !matches!(request.parse(head), Ok(Status::Complete(_))) {
            return None;
        }
        let path = request.path?.split('?').next();
        let accepts = request.headers.iter().any(|field| {
            let value = String::from_utf8_lossy(field.value).to_ascii_lowercase();
            field.name.eq_ignore_ascii_case("accept")
                && value.contains("application/openmetrics-text")
        });
        Some(HttpRequest {
            method: match request.method? {
                "GET" => Method::Get,
                "HEAD" => Method::Head,
                _ => Method::Other,
            },
            is_metrics: path == Some("/metrics"),
            format: if accepts { Format::OpenMetrics } else { Format::Prometheus },
        })
    }
}

/// Reads up to the empty line; what is too long or never ends is no request.
fn read_head(connection: &mut dyn Connection) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + CONNECTION_TIME;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        connection.set_times(left)?;
        let count = match connection.read(&mut part) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        head.extend_from_slice(&part[..count]);
        if count == 0 || head.len() > HEAD_MAX {
            break;
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(head: &str) -> Option<HttpRequest> {
        HttpRequest::read(head.as_bytes())
    }

    #[test]
    fn requests_are_told_apart() {
        let open = "GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nACCEPT: text/plain;q=0.5, \
                    application/openmetrics-text;version=1.0.0\r\n\r\n";
        let (method, is_metrics) = (Method::Get, true);
        assert_eq!(
            asked(open),
            Some(HttpRequest { method, is_metrics, format: Format::OpenMetrics })
        );
        let older = HttpRequest { method, is_metrics, format: Format::Prometheus };
        assert_eq!(asked("GET /metrics HTTP/1.0\r\n\r\n"), Some(older));
        let root = asked("HEAD / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((root.method, root.is_metrics), (Method::Head, false));
        assert_eq!(asked("POST /metrics HTTP/1.1\r\n\r\n").unwrap().method, Method::Other);
        for garbage in ["", "\r\n\r\n", "GET\r\n\r\n", "GET /metrics HTTP/1.1\r\n", "{}\n"] {
            assert_eq!(asked(garbage), None, "{garbage:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = HttpRequest::read(&bytes);
            let head = [b"GET /metrics HTTP/1.1\r\n", &bytes[..], b"\r\n\r\n"].concat();
            let _ = HttpRequest::read(&head);
        }
    }

    fn scratch(name: &str) -> PathBuf {
        let name = format!("overspill-metrics-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// What one that listens answers to these bytes.
    fn answer(mut stream: impl Read + Write, bytes: &[u8]) -> String {
        let _ = stream.write_all(bytes);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn each_request_has_its_answer() {
        let listener = Listener::open(&Address::Port("127.0.0.1:0".parse().unwrap())).unwrap();
        let Listener::Port(port) = &listener else { unreachable!() };
        let address = port.local_addr().unwrap();
        assert_eq!(listener.shown(), format!("http://{address}/metrics"));
        let ended = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| listener.serve(&|_| "page\n".to_owned(), || ended.load(Relaxed) == 0));
            let ask = |bytes: &[u8]| answer(TcpStream::connect(address).unwrap(), bytes);
            let page = ask(b"GET /metrics HTTP/1.1\r\n\r\n");
            assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain;"), "{page}");
            assert!(page.ends_with("\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n"));
            let head = ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
            assert!(head.contains("Content-Length: 5\r\n") && head.ends_with("\r\n\r\n"));
            assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
            assert!(ask(b"PUT /metrics HTTP/1.1\r\n\r\n").contains("Allow: GET, HEAD\r\n"));
            assert!(ask(b"hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
            assert!(ask(&vec![b'x'; HEAD_MAX + 1]).starts_with("HTTP/1.1 400 "));
            // Whoever says nothing keeps nobody waiting.
            let silent = TcpStream::connect(address).unwrap();
            assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("page\n"));
            drop(silent);
            ended.store(1, Relaxed);
        });
    }

    #[test]
    fn a_socket_is_private_and_takes_the_place_of_a_dead_one() {
        let dir = scratch("socket");
        let path = dir.join("a.sock");
        let open = || Listener::open(&Address::Socket(path.clone()));
        let listener = open().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        let refused = open().unwrap_err().sentence;
        assert!(refused.contains("somebody listens at"), "{refused}");
        drop(listener);
        assert!(!path.exists(), "it goes with the listener");
        drop(UnixListener::bind(&path).unwrap());
        drop(open().unwrap());
        fs::write(&path, "").unwrap();
        let refused = open().unwrap_err().sentence;
        assert!(refused.contains("is no socket"), "{refused}");
        let nowhere = Listener::open(&Address::Socket(dir.join("no/a.sock"))).unwrap_err();
        assert!(nowhere.sentence.starts_with("cannot listen at"), "{nowhere:?}");
        fs::remove_dir_all(dir).unwrap();
    }
}
