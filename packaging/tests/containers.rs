//! The pod, the image's command and the seccomp profile in a runtime of containers, which puts the
//! profile on a process by libseccomp. What Docker and Kubernetes tell a runtime is told here.

use overspill_tests::process::{Outcome, run};
use overspill_tests::scratch::Room;
use overspill_tests::{Scratch, TIME_LIMIT, clean, is_root, overspill, repository, skipped};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new(env!("CARGO_TARGET_TMPDIR")));
/// It holds some 117 MiB, more than it gets.
const PROGRAM: &str = "print(sum(list(range(3_000_000))))\n";
const PRINTED: &str = "4499998500000\n";
const LIMIT: u64 = 128 << 20;
/// What Docker leaves a container of root, unless it is told otherwise.
const OF_DOCKER: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

fn read(path: &str) -> String {
    let path = repository().join("packaging").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn profile() -> Value {
    serde_json::from_str(&read("seccomp.json")).expect("it is JSON")
}

/// A profile as it is, but for one call that it allows.
fn without(mut profile: Value, call: &str) -> Value {
    let rules = profile["syscalls"].as_array_mut().expect("a list");
    for rule in rules {
        rule["names"].as_array_mut().expect("a list").retain(|name| name != call);
    }
    profile["syscalls"].as_array_mut().unwrap().retain(|rule| rule["names"] != json!([]));
    profile
}

/// What runs in a container, and as who.
struct Container<'a> {
    command: Vec<&'a str>,
    variables: Vec<String>,
    user: u64,
    capabilities: &'a [&'a str],
    no_new_privileges: bool,
    profile: Option<Value>,
}

impl Container<'_> {
    /// The bundle's config.json. The machine's programs are those of the image.
    fn config(&self, room: &Path, overspill: &Path, id: &str) -> Value {
        let bound = |from: &Path, to: &str, mode: &str| {
            let options = json!(["rbind", mode]);
            json!({ "destination": to, "type": "bind", "source": from, "options": options })
        };
        let made = |at: &str, kind: &str, mode: &str| {
            let options = json!([mode]);
            json!({ "destination": at, "type": kind, "source": kind, "options": options })
        };
        let mut mounts = vec![
            made("/proc", "proc", "rw"),
            made("/dev", "tmpfs", "rw"),
            made("/tmp", "tmpfs", "rw"),
            made("/sys", "sysfs", "ro"),
            // Where overspill reads what the container's memory is limited to.
            made("/sys/fs/cgroup", "cgroup", "ro"),
        ];
        let system = ["/usr", "/lib", "/lib64", "/bin"].into_iter().map(Path::new);
        let system = system.filter(|path| path.exists());
        mounts.extend(system.map(|path| bound(path, path.to_str().expect("UTF-8"), "ro")));
        mounts.extend([
            bound(overspill.parent().expect("it lies in a directory"), "/opt/overspill", "ro"),
            bound(&room.join("job.py"), "/srv/job.py", "ro"),
            bound(&room.join("swap"), "/swap", "rw"),
        ]);
        let kept = self.capabilities;
        let mut environment = vec!["PATH=/opt/overspill:/usr/bin:/bin".to_owned()];
        environment.extend(self.variables.iter().cloned());
        let namespaces = ["pid", "mount", "ipc", "uts", "network"];
        let mut config = json!({
            "ociVersion": "1.0.2",
            "root": { "path": "rootfs" },
            "mounts": mounts,
            "process": {
                "args": self.command,
                "cwd": "/srv",
                "env": environment,
                "user": { "uid": self.user, "gid": self.user },
                "noNewPrivileges": self.no_new_privileges,
                "capabilities": { "bounding": kept, "effective": kept, "permitted": kept },
            },
            "linux": {
                "cgroupsPath": format!("/{id}"),
                "namespaces": namespaces.map(|kind| json!({ "type": kind })),
                "resources": { "memory": { "limit": LIMIT } },
            },
        });
        if let Some(profile) = &self.profile {
            config["linux"]["seccomp"] = profile.clone();
        }
        config
    }

    /// Runs it, with files in a directory.
    fn run(&self, runtime: &str, room: &Room, overspill: &Path) -> Outcome {
        let swap = room.path.join("swap");
        for directory in [room.path.join("rootfs"), swap.clone()] {
            fs::create_dir_all(directory).unwrap();
        }
        std::os::unix::fs::chown(&swap, Some(self.user as u32), Some(self.user as u32)).unwrap();
        fs::write(room.path.join("job.py"), PROGRAM).unwrap();
        let id = room.path.file_name().expect("a name").to_str().expect("UTF-8");
        let config = self.config(&room.path, overspill, id).to_string();
        fs::write(room.path.join("config.json"), config).unwrap();
        let mut command = Command::new(runtime);
        command.arg("--root").arg(room.path.join("state")).args(["run", "--bundle"]);
        run(clean(command.arg(&room.path).arg(id)), TIME_LIMIT)
    }
}

/// A runtime that starts a container here, or why there is none.
fn find_runtime(overspill: &Path) -> Result<&'static str, String> {
    if !is_root() {
        return Err("containers are started as root".into());
    }
    if !Path::new("/usr/bin/python3").exists() {
        return Err("there is no /usr/bin/python3".into());
    }
    let mut said = Vec::new();
    for runtime in ["runc", "crun"] {
        if Command::new(runtime).arg("--version").output().is_err() {
            said.push(format!("there is no {runtime}"));
            continue;
        }
        let nothing = Container {
            command: vec!["true"],
            variables: Vec::new(),
            user: 0,
            capabilities: &[],
            no_new_privileges: true,
            profile: None,
        };
        let room = SCRATCH.room(&format!("any-{runtime}"));
        let outcome = nothing.run(runtime, &room, overspill);
        if outcome.status == 0 {
            return Ok(runtime);
        }
        said.push(format!("{runtime} starts nothing here: {}", outcome.stderr.trim()));
    }
    Err(said.join("; "))
}

/// A runtime and the command under test, if both work here.
fn both() -> Option<(&'static str, &'static Path)> {
    static RUNTIME: LazyLock<Option<Result<&str, String>>> =
        LazyLock::new(|| overspill(&SCRATCH).map(find_runtime));
    match RUNTIME.as_ref()? {
        Ok(runtime) => Some((runtime, overspill(&SCRATCH)?)),
        Err(why) => {
            skipped(why);
            None
        }
    }
}

/// That a job ran in three quarters of the container's memory, and swapped to its volume.
fn assert_swapped(outcome: &Outcome, room: &Room) {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, PRINTED), "{}", outcome.stderr);
    let stats = fs::read_to_string(room.path.join("swap/stats.json")).expect("it is written");
    let stats: Value = serde_json::from_str(&stats).expect("it is JSON");
    let total = &stats["total"];
    assert_eq!(stats["run"]["budget_bytes"], LIMIT / 4 * 3);
    assert_eq!(total["devices"][0]["path"], "/swap");
    assert!(total["counters"]["workingset_evict"].as_u64() > Some(0), "{}", total["counters"]);
}

#[test]
fn the_pod_runs_in_a_container() {
    let Some((runtime, overspill)) = both() else { return };
    let Some(pod) = overspill_tests::yaml::read("packaging/kubernetes/pod.yaml") else { return };
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let command: Vec<String> = container["command"].as_array().unwrap().iter().map(text).collect();
    let given = container["env"].as_array().expect("a list").iter();
    let given = given.map(|one| format!("{}={}", text(&one["name"]), text(&one["value"])));
    let pod = Container {
        command: command.iter().map(String::as_str).collect(),
        variables: given.chain(["OVERSPILL_STATS_JSON=/swap/stats.json".to_owned()]).collect(),
        user: spec["securityContext"]["runAsUser"].as_u64().expect("a number"),
        capabilities: &[],
        no_new_privileges: container["securityContext"]["allowPrivilegeEscalation"] == false,
        profile: Some(profile()),
    };
    let room = SCRATCH.room("pod");
    assert_swapped(&pod.run(runtime, &room, overspill), &room);
}

#[test]
fn the_image_runs_as_docker_starts_it_and_not_without_userfaultfd() {
    let Some((runtime, overspill)) = both() else { return };
    let file = read("container/Containerfile");
    let entry = file.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).expect("there is");
    let entry: Vec<&str> = serde_json::from_str(entry).expect("a list of words");
    let container = |profile| Container {
        command: entry.iter().copied().chain(["python3", "job.py"]).collect(),
        variables: ["SWAP=/swap:8G", "STATS_JSON=/swap/stats.json"]
            .map(|set| format!("OVERSPILL_{set}"))
            .to_vec(),
        user: 0,
        capabilities: &OF_DOCKER,
        no_new_privileges: false,
        profile: Some(profile),
    };
    let room = SCRATCH.room("image");
    assert_swapped(&container(profile()).run(runtime, &room, overspill), &room);
    let refused = without(profile(), "userfaultfd");
    let outcome = container(refused).run(runtime, &SCRATCH.room("refused"), overspill);
    assert_eq!(outcome.status, 125, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("userfaultfd"), "{}", outcome.stderr);
}
