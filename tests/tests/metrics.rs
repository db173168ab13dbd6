//! What is told of running jobs for Prometheus, `overspill metrics`: as text, at a port, at a
//! socket, in a file; and what is told by the dashboard and the alert rules beside it.

use overspill_tests::job::{Job, refused};
use overspill_tests::process::{Outcome, run, wait_until};
use overspill_tests::scratch::Room;
use overspill_tests::{Scratch, TIME_LIMIT, clean, repository, skipped};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));

/// Metrics by name and labels, as they are written.
type Metrics = BTreeMap<String, f64>;

/// A job that swaps all the time.
fn busy(name: &str) -> Option<Job> {
    let dir = SCRATCH.target_dir().to_str().unwrap();
    Job::churn(&SCRATCH, name, &["--memory", "16M", "--swap", dir], &["64"])
}

/// Reads OpenMetrics as its specification has it: each family is described before its samples,
/// which stand together, and the end is marked.
fn parsed(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    let (mut family, mut kind) = (String::new(), String::new());
    let mut known = BTreeSet::new();
    let body = text.strip_suffix("# EOF\n").unwrap_or_else(|| panic!("no end: {text}"));
    for line in body.lines() {
        if let Some(described) = line.strip_prefix("# ") {
            let words: Vec<_> = described.splitn(3, ' ').collect();
            match words[0] {
                "HELP" => {
                    family = words[1].to_owned();
                    assert!(known.insert(family.clone()), "{family} stands in two places");
                }
                "TYPE" => kind = words[2].to_owned(),
                "UNIT" => assert!(family.ends_with(&format!("_{}", words[2])), "{line}"),
                _ => panic!("{line}"),
            }
            assert_eq!(words[1], family, "{line}");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let name = sample.split('{').next().unwrap();
        let suffixes: &[&str] = match kind.as_str() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "gauge" => &[""],
            _ => panic!("{family} is of kind {kind}"),
        };
        let rest = name.strip_prefix(&family).unwrap_or_else(|| panic!("{line} after {family}"));
        assert!(suffixes.contains(&rest), "{line} after {family}");
        let value: f64 = value.parse().unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(metrics.insert(sample.to_owned(), value).is_none(), "twice: {line}");
    }
    metrics
}

fn printed(outcome: &Outcome) -> Metrics {
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    parsed(&outcome.stdout)
}

fn get(metrics: &Metrics, name: &str) -> f64 {
    *metrics.get(name).unwrap_or_else(|| panic!("no {name} in {metrics:#?}"))
}

#[test]
fn figures_are_those_of_stat_and_only_grow() {
    let Some(job) = busy("metrics") else { return };
    let pid = job.pid();
    let named = |name: &str| format!("overspill_{name}{{job=\"{pid}\"}}");
    // Pages have come back from the device by then.
    let major = || get(&printed(&job.ask(&["metrics"])), &named("major_faults_total"));
    assert!(wait_until(TIME_LIMIT, || major() > 0.0), "no page comes back");
    let first = printed(&job.ask(&["metrics"]));
    let stat = job.ask(&["stat", "--json"]).stdout;
    let stat: Value = serde_json::from_str(&stat).unwrap();
    let last = printed(&job.ask(&["metrics", "--pid", &job.processes()[0].0.to_string()]));
    let between = |name: &str, figure: &Value| {
        let [low, high] = [&first, &last].map(|metrics| get(metrics, name));
        let figure = figure.as_f64().unwrap();
        assert!(low <= figure && figure <= high && low > 0.0, "{name}: {low} {figure} {high}");
    };
    between(&named("faults_total"), &stat["counters"]["pgfault"]);
    between(&named("major_faults_total"), &stat["counters"]["pgmajfault"]);
    between(&named("job_elapsed_seconds"), &stat["elapsed_s"]);
    assert_eq!(get(&last, "overspill_jobs"), 1.0);
    assert_eq!(get(&last, &named("budget_bytes")), f64::from(16 << 20));
    assert_eq!(get(&last, &named("processes")), 1.0);
    let command = format!("overspill_job_info{{job=\"{pid}\",command=\"churn_c\"}}");
    assert_eq!(get(&last, &command), 1.0);
    let device = SCRATCH.target_dir().display().to_string();
    for name in ["swap_written_bytes_total", "swap_reads_total", "swap_used_bytes"] {
        let name = format!("overspill_{name}{{job=\"{pid}\",device=\"{device}\"}}");
        assert!(get(&last, &name) > 0.0, "{name}");
    }
    for (name, tier) in [
        ("swapped_out_bytes_total", "compressed"),
        ("swapped_in_bytes_total", "device"),
        ("held_bytes", "resident"),
        ("held_bytes", "compressed"),
        ("fault_duration_seconds_count", "device"),
    ] {
        let name = format!("overspill_{name}{{job=\"{pid}\",tier=\"{tier}\"}}");
        assert!(get(&last, &name) > 0.0, "{name}");
    }
    for (name, before) in &first {
        if name.split('{').next().unwrap().ends_with("_total") || name.contains("_bucket{") {
            assert!(get(&last, name) >= *before, "{name} has gone back");
        }
    }
    job.end_churn();
}

/// The child of a fork ends, and its parent becomes another program.
#[test]
fn what_processes_did_stays_when_they_end_or_execute_another_program() {
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        return skipped("there is no /usr/bin/python3");
    }
    const PROGRAM: &str = "\
import os, sys, time
data = bytearray(bytes(range(256)) * (24 << 12))
if len(sys.argv) == 2:
    pid = os.fork()
    if pid == 0:
        data[::4096] = bytes(len(data) // 4096)
        os._exit(0)
    os.waitpid(pid, 0)
    print('forked', flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])
print('executed', flush=True)
time.sleep(600)
";
    let room = SCRATCH.room("metrics-exec");
    let [script, goes_on] = ["program.py", "goes-on"].map(|name| room.path.join(name));
    fs::write(&script, PROGRAM).unwrap();
    let command = [python, script.to_str().unwrap(), goes_on.to_str().unwrap()];
    let options = ["--memory", "16M", "--no-swap"];
    let Some(mut job) = Job::start(&SCRATCH, "metrics-exec", &options, &command) else { return };
    let mut lines = BufReader::new(job.child.stdout.take().unwrap()).lines();
    let mut said = || lines.next().expect("the program goes on").unwrap();
    let counters = |job: &Job| {
        let mut metrics = printed(&job.ask(&["metrics"]));
        metrics.retain(|name, _| {
            name.split('{').next().unwrap().ends_with("_total") && !name.contains("process_")
        });
        metrics
    };
    let mut before = counters(&job);
    let mut grown = |job: &Job, when: &str| {
        let now = counters(job);
        for (name, count) in &before {
            assert!(get(&now, name) >= *count, "{when}: {name} has gone back");
        }
        before = now;
    };
    assert_eq!(said(), "forked");
    grown(&job, "a child has ended");
    fs::write(&goes_on, "").unwrap();
    assert_eq!(said(), "executed");
    grown(&job, "the parent has become another program");
    grown(&job, "and is still");
}

/// `overspill metrics` that goes on; killed when dropped.
struct Server(Child);

impl Server {
    /// That listens when this returns, and where.
    fn start(job: &Job, arguments: &[&str]) -> (Server, String) {
        let mut command = job.command(&[&["metrics"], arguments].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim_end().strip_prefix("overspill: metrics are at ");
        (Server(child), place.unwrap_or_else(|| panic!("{line}")).to_owned())
    }

    /// Its exit status.
    fn end(mut self) -> Option<i32> {
        let mut status = None;
        let ended = wait_until(TIME_LIMIT, || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "it does not end");
        status.unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is answered: the head, and what follows.
fn asked(mut stream: impl Read + Write, fields: &str) -> (String, String) {
    stream.write_all(format!("GET /metrics HTTP/1.1\r\n{fields}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    (head.to_owned(), body.to_owned())
}

#[test]
fn it_answers_at_a_port_and_at_a_socket_until_the_job_ends() {
    let Some(job) = busy("metrics-listen") else { return };
    let (port, place) = Server::start(&job, &["--listen", "127.0.0.1:0"]);
    let address = place.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let connect = || TcpStream::connect(address).unwrap();
    let (head, body) = asked(connect(), "Accept: application/openmetrics-text\r\n");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0;"), "{head}");
    assert_eq!(get(&parsed(&body), "overspill_jobs"), 1.0);
    let (head, body) = asked(connect(), "");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("# TYPE overspill_faults_total counter\n"), "{body}");

    let path = job.runtime.join("metrics.sock");
    let pid = job.pid().to_string();
    let socket = ["--pid", &pid, "--listen", path.to_str().unwrap()];
    let (one, place) = Server::start(&job, &socket);
    assert_eq!(place, path.display().to_string());
    let (_, body) = asked(UnixStream::connect(&path).unwrap(), "");
    assert!(body.contains("overspill_jobs 1\n"), "{body}");
    refused(&job.ask(&[&["metrics"], &socket[..]].concat()), 1, &["somebody listens at"]);
    job.end_churn();
    assert_eq!(one.end(), Some(0), "it ends with the job");
    assert!(!path.exists(), "its socket is gone");
    let (_, body) = asked(connect(), "");
    assert!(body.contains("overspill_jobs 0\n"), "{body}");
    kill_process(Pid::from_child(&port.0), Signal::TERM).unwrap();
    assert_eq!(port.end(), Some(0));
}

#[test]
fn a_file_is_written_for_node_exporter() {
    let Some(job) = busy("metrics-file") else { return };
    let room = SCRATCH.room("metrics-file");
    let file = room.path.join("overspill.prom");
    let path = file.to_str().unwrap();
    let outcome = job.ask(&["metrics", "--textfile", path]);
    assert_eq!((outcome.status, outcome.stdout.as_str(), outcome.stderr.as_str()), (0, "", ""));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("overspill_jobs 1\n"), "{text}");
    check_with_promtool(&text);
    let pid = job.pid().to_string();
    let mut command = job.command(&["metrics", "--pid", &pid, "--textfile", path, "0.1"]);
    let again = Server(command.spawn().unwrap());
    job.end_churn();
    assert_eq!(again.end(), Some(0), "it ends with the job");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("overspill_jobs 0\n"), "the last one has no job: {text}");
    assert_eq!(fs::read_dir(&room.path).unwrap().count(), 1, "nothing else is left");
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

fn check_with_promtool(text: &str) {
    if !is_there("promtool") {
        return skipped("there is no promtool");
    }
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    promtool.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let outcome = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success() && said.is_empty(), "{said}\n{text}");
}

/// A Prometheus that scrapes one place often; ended when dropped.
struct Prometheus {
    port: SocketAddr,
    log: PathBuf,
    _server: Server,
    _room: Room,
}

impl Prometheus {
    /// With the recipes of this repository.
    fn start(name: &str, target: &str) -> Prometheus {
        let room = SCRATCH.room(name);
        let config = recipe("prometheus.yml").replace("127.0.0.1:9979", target);
        let often = "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nscrape_configs:";
        let config = config.replace("scrape_configs:", often);
        fs::write(room.path.join("prometheus.yml"), config).unwrap();
        fs::write(room.path.join("alerts.yml"), recipe("alerts.yml")).unwrap();
        // Of ports that are free now, one that nobody takes meanwhile, hopefully.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = room.path.join("log");
        let mut prometheus = Command::new("prometheus");
        prometheus
            .arg(format!("--config.file={}", room.path.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", room.path.join("data").display()))
            .arg(format!("--web.listen-address={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap());
        let server = Server(prometheus.spawn().unwrap());
        Prometheus { port, log, _server: server, _room: room }
    }

    /// What is answered, if it answers yet.
    fn get(&self, path: &str) -> Option<Value> {
        let port = self.port;
        let mut stream = TcpStream::connect(port).ok()?;
        let head = format!("GET /api/v1/{path} HTTP/1.0\r\nHost: {port}\r\n\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        Some(answer["data"].clone())
    }

    /// The first sample of an expression.
    fn sample(&self, expression: &str) -> Option<Value> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.get(&format!("query?query={escaped}"))?["result"].get(0).cloned()
    }

    /// Waits for one.
    fn wait_for(&self, expression: &str, is_right: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        let is_there = wait_until(TIME_LIMIT, || {
            found = self.sample(expression);
            found.as_ref().is_some_and(&is_right)
        });
        let log = fs::read_to_string(&self.log).unwrap();
        assert!(is_there, "{expression}: {found:?}\n{log}");
        found.unwrap()
    }
}

#[test]
fn prometheus_scrapes_it() {
    if !is_there("prometheus") {
        return skipped("there is no prometheus");
    }
    let Some(job) = busy("metrics-scrape") else { return };
    let (server, place) = Server::start(&job, &["--listen", "127.0.0.1:0"]);
    let target = place.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let prometheus = Prometheus::start("metrics-scrape", target);
    prometheus.wait_for("rate(overspill_faults_total[30s])", |sample| {
        let rate: Option<f64> = sample["value"][1].as_str().and_then(|rate| rate.parse().ok());
        rate.is_some_and(|rate| rate > 0.0)
    });
    let sample = prometheus.wait_for("overspill_swap_size_bytes", |_| true);
    assert_eq!(sample["metric"]["job"], job.pid().to_string(), "{sample}");
    let times = "histogram_quantile(0.5,overspill_fault_duration_seconds_bucket)";
    let times = prometheus.wait_for(times, |_| true);
    assert!(times["metric"]["tier"].is_string(), "{times}");
    // Each panel of the dashboard has something to show, with what its legend names.
    let targets = targets();
    for (expression, legend) in &targets {
        let expression = expression
            .replace("$job", &job.pid().to_string())
            .replace("$instance", ".*")
            .replace("$__rate_interval", "30s");
        let sample = prometheus.wait_for(&expression, |_| true);
        for label in between(legend, "{{", "}}") {
            assert!(sample["metric"][label].is_string(), "{expression}: no {label} in {sample}");
        }
    }
    assert!(targets.len() > 20, "{targets:?}");
    let is_well = |rules: &Value| {
        let health = strings(rules, "health");
        health.len() == recipe("alerts.yml").matches("- alert:").count()
            && health.iter().all(|health| *health == "ok")
    };
    let evaluated = wait_until(TIME_LIMIT, || prometheus.get("rules").is_some_and(|r| is_well(&r)));
    assert!(evaluated, "{:?}", prometheus.get("rules"));
    drop((prometheus, server));
    job.end_churn();
}

fn recipe(name: &str) -> String {
    let path = repository().join("packaging/prometheus").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of metrics in an expression.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    words.filter(|word| word.starts_with("overspill_")).map(str::to_owned).collect()
}

/// Every string in a value that is called so.
fn strings<'a>(value: &'a Value, name: &str) -> Vec<&'a str> {
    match value {
        Value::Array(values) => values.iter().flat_map(|value| strings(value, name)).collect(),
        Value::Object(values) => {
            let own = values.get(name).and_then(Value::as_str);
            own.into_iter().chain(values.values().flat_map(|v| strings(v, name))).collect()
        }
        _ => Vec::new(),
    }
}

/// What the dashboard draws: an expression, and the legend beside it.
fn targets() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&recipe("dashboard.json")).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("a list"));
    let text = |target: &Value, name: &str| target[name].as_str().expect("a text").to_owned();
    targets.map(|target| (text(target, "expr"), text(target, "legendFormat"))).collect()
}

/// What stands between two texts, each time.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

/// What an expression may name: metrics, their labels (`METRIC LABEL`), and those with a value.
fn known(metrics: &Metrics) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for sample in metrics.keys() {
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        // Prometheus has a label of its own for where it scrapes.
        for label in labels.trim_end_matches('}').split(',').chain(["instance=\"\""]) {
            known.insert(format!("{name} {label}"));
            known.insert(format!("{name} {}", label.split('=').next().unwrap()));
        }
        known.insert(name.to_owned());
    }
    known
}

/// What of an expression there is not, also of the labels that stand beside it.
fn unknown(expression: &str, beside: &[&str], known: &BTreeSet<String>) -> Vec<String> {
    let metrics = metrics_in(expression);
    let mut named: Vec<String> = metrics.iter().cloned().collect();
    for (at, _) in expression.match_indices('{') {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let metric = expression[..at].rsplit(|c| !is_part(c)).next().unwrap();
        for condition in expression[at + 1..].split('}').next().unwrap().split(',') {
            let is_pattern = condition.contains("=~");
            let part = if is_pattern { condition.split('=').next().unwrap() } else { condition };
            named.push(format!("{metric} {}", part.trim()));
        }
    }
    named.retain(|name| !known.contains(name));
    let lists = ["by (", "on (", "ignoring (", "group_left ("];
    let lists = lists.iter().flat_map(|list| between(expression, list, ")"));
    let labels =
        lists.flat_map(|list| list.split(',').map(str::trim)).chain(beside.iter().copied());
    let is_of_one =
        |label: &str| metrics.iter().any(|metric| known.contains(&format!("{metric} {label}")));
    named.extend(labels.filter(|label| !is_of_one(label)).map(str::to_owned));
    named
}

#[test]
fn the_dashboard_and_the_rules_name_metrics_and_labels_that_there_are() {
    let Some(job) = busy("metrics-named") else { return };
    let known = known(&printed(&job.ask(&["metrics"])));
    job.end_churn();
    let (targets, rules) = (targets(), recipe("alerts.yml"));
    for (expression, legend) in &targets {
        let missing = unknown(expression, &between(legend, "{{", "}}"), &known);
        assert!(missing.is_empty(), "the dashboard, {expression}: there is no {missing:?}");
    }
    let rules: Vec<_> = rules.split("- alert:").skip(1).collect();
    for rule in &rules {
        let (expression, texts) = rule.split_once("labels:").expect("labels follow");
        let expression = expression.split_once("expr:").expect("it has one").1;
        let missing = unknown(expression, &between(texts, "$labels.", " "), &known);
        assert!(missing.is_empty(), "{rule}: there is no {missing:?}");
    }
    let dashboard: Value = serde_json::from_str(&recipe("dashboard.json")).expect("it is JSON");
    let values = strings(&dashboard, "query").join("\n");
    let values = between(&values, "label_values(", ")");
    for value in &values {
        let (metric, label) = value.rsplit_once(", ").expect("a metric and a label");
        let missing = unknown(metric, &[label], &known);
        assert!(missing.is_empty(), "{value}: there is no {missing:?}");
    }
    assert_eq!((targets.len() > 20, rules.len(), values.len()), (true, 6, 2));
    // It can tell: what there is not is found, wherever it stands.
    for (expression, label, missing) in [
        ("overspill_nothing", "job", &["overspill_nothing", "job"][..]),
        (
            "rate(overspill_faults_total{device=~\"$x\"}[5m])",
            "job",
            &["overspill_faults_total device"],
        ),
        ("overspill_held_bytes{tier=\"disk\"}", "tier", &["overspill_held_bytes tier=\"disk\""]),
        ("sum by (node, job) (overspill_faults_total)", "tier", &["node", "tier"]),
    ] {
        assert_eq!(unknown(expression, &[label], &known), missing, "{expression}");
    }
}

#[test]
fn promtool_takes_the_rules_and_they_fire() {
    if !is_there("promtool") {
        return skipped("there is no promtool");
    }
    let directory: PathBuf = repository().join("packaging/prometheus");
    for arguments in [["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]] {
        let mut promtool = Command::new("promtool");
        let outcome = run(clean(&mut promtool).args(arguments).current_dir(&directory), TIME_LIMIT);
        assert_eq!(outcome.status, 0, "{}{}", outcome.stdout, outcome.stderr);
    }
}

#[test]
fn mistakes_are_named() {
    let Some(job) = Job::churn(&SCRATCH, "metrics-not", &["--memory", "16M"], &["8"]) else {
        return;
    };
    for (arguments, parts) in [
        ("--listen 0.0.0.0:9979", &["from other machines"][..]),
        ("--listen 9979", &["or the path of a socket"]),
        ("15", &["--textfile"]),
        ("--listen ./a --textfile b.prom", &["cannot be used with"]),
        ("--textfile ./b.txt", &["do not end in .prom", "./overspill.prom"]),
        ("--pid 0", &["`overspill top --once` lists jobs"]),
        ("--pid abc", &["`overspill top --once` lists jobs"]),
    ] {
        let words: Vec<_> = ["metrics"].into_iter().chain(arguments.split(' ')).collect();
        refused(&job.ask(&words), 2, parts);
    }
    let nobody = ((1 << 22) + 1).to_string();
    refused(&job.ask(&["metrics", "--pid", &nobody]), 1, &["there is no process"]);
    let nowhere = ["metrics", "--textfile", "/proc/nowhere/a.prom"];
    refused(&job.ask(&nowhere), 1, &["cannot write metrics to '/proc/nowhere/a.prom'"]);
    let nowhere = ["metrics", "--listen", "/proc/nowhere/a.sock"];
    refused(&job.ask(&nowhere), 1, &["cannot listen at '/proc/nowhere/a.sock'"]);
    refused(&job.ask(&["metrics", "--listen", "/dev/null"]), 1, &["is no socket"]);
    // Without a job their number is told.
    let mut command = job.command(&["metrics"]);
    job.end_churn();
    let none = run(&mut command, TIME_LIMIT);
    assert_eq!(printed(&none), Metrics::from([("overspill_jobs".to_owned(), 0.0)]));
}
