#!/usr/bin/env python3
"""The house rules that a program can check, in a second.

    tests/tidy.py [--count]

- Imports go down only: each crate is a list of floors, and a floor names only those below it.
- Files of a folder do not import each other in a circle.
- A method stands in the folder of its type.
- Functions have at most 70 lines, lines at most 100 columns.
- Each path and symbol that ARCHITECTURE.md names exists.
- No decision depends on the time of day, which may be set at any time.
- Each name of ours that the preload library's linker script puts in place exists: one that does not
  matches nothing, and nobody would hear of it.
- A crate that may be published has the text of its licences.

With --count the figures of each crate are printed as well.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES_OF_A_FUNCTION = 70
COLUMNS = 100

# The floors of each crate, from the ground: files and folders of its src. Those in one entry are
# one floor, and know nothing of each other.
FLOORS = {
    "crates/os": [
        "units", "lock", "copy", "cpu", "region", "heap", "task", "tls", "pointer", "process",
        "confined", "seccomp",
        "descriptors", "directory", "signal", "report", "engine_thread", "vm", "arena", "stack",
        "table", "list", "codec", "beside", "foreign", "io", "secret", "crypt", "uffd", "backing",
        "uring", "rest", "observer", "rss", "smaps", "executable", "token", "thread",
        "fault_path", "probe", "lib",
    ],
    "crates/preload": [
        "sys", "low", "route", "code", "rewrite", "config", "own_stack", "heap", "image",
        "redirect", "probe", "pool", "constants", "dormant", "remote", "memory", "limits",
        "data_end", "load", "userfaultfd", "nested", "kernel_words", "robust", "signals", "stubs",
        "trap", "calls", "streams", "sandbox", "delivery", "gate", "map", "alloc", "fds", "dma",
        "exec", "credentials", "stdio", "thread", "fork", "syscall", "inline", "init", "lib",
    ],
    "crates/c": ["error", "pools", "fork", "options", "calls", "lib"],
    "crates/cli": [
        "failure", "signals", "out", "swap", "memory", "outside", "rundir", "report",
        "unmanaged", "ran", "control", "sizing", "args", "program", "env", "limits", "launch",
        "commands", "lib", "main",
    ],
    "crates/python": ["blocks", "fork", "owner", "numpy", "failure", "pool", "lib"],
    "crates/engine": [
        "units", "stats", "base", "account", "workingset", "frame", "slot", "zpool", "device",
        "memory", "swap", "reclaim", "fault", "control", "space", "error", "config", "engine",
        "pool", "lib",
    ],
    "torture": ["table", "plan", "job", "full", "watch", "events", "run", "reduce", "main"],
    "packaging": [
        "texts", "roff", "definition", "interface", "pages", "completions", "main",
    ],
    "bench": [
        "contents", "usage", "workload", "measure", "model", "render", "machine", "work", "fixture",
        "benches", "lib", "bin", "main",
    ],
}

# Clocks that somebody may set, and what names them for another reason than to decide by them.
SETTABLE_CLOCK = re.compile(
    r"\bSystemTime\b|\bUNIX_EPOCH\b|\bUtc\b|ClockId::(?:Realtime|Tai)\w*"
    r"|\w*CLOCK_(?:REALTIME|TAI)\w*|\bgettimeofday\b|\blibc::time\b"
    r"|\bpthread_\w+_timed\w+|\bsem_timedwait\b"
    r"|\.(?:modified|accessed|created)\(\)|\bst_[acm]time\b"
)
NAMED_FOR = {
    "crates/cli/src/commands/stat.rs": "the time of a sample, as it is printed",
    "crates/os/src/seccomp/arguments.rs": "a flag of the program's futexes, which is passed over",
    "torture/src/main.rs": "a seed",
}

TEST_FILES = re.compile(r"(^|/)(tests?|interleavings|explore|fixture)(\.rs|/)")


def tracked(*patterns):
    """Files of the repository by pattern."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def without_tests(text):
    """The part of a file before its module of tests."""
    return re.split(
        r"^#\[cfg\((?:test|all\(test[^\n]*)\)\]\n(?:#\[[^\n]*\]\n)*(?:pub )?mod \w+ \{",
        text,
        maxsplit=1,
        flags=re.M,
    )[0]


def code_of(text):
    """The text without comments and what is in strings."""
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def floor_of(crate, path):
    """The floor of a file: the first part of its path in src."""
    return path.relative_to(ROOT / crate / "src").parts[0].removesuffix(".rs")


def names_imported(text, depth):
    """First names of paths from the root of the crate, also out of `use crate::{a, b::c}`, and
    those that `super` leads to from a file so deep in src."""
    for match in re.finditer(r"\b(crate|super(?:::super)*)::(?:(\w+)|(?=\{))", text):
        if match.group(1) != "crate" and match.group(1).count("super") < depth:
            continue
        if match.group(2):
            # A macro that is exported has its name at the root, wherever it stands.
            if match.group(2) != "super" and text[match.end()] != "!":
                yield match.group(2), match.start()
            continue
        braces, at, word = 1, match.end() + 1, match.end() + 1
        while braces:
            if braces == 1 and text[at] in ",}":
                first = re.match(r"\s*(\w+)", text[word:at])
                if first:
                    yield first.group(1), word
                word = at + 1
            braces += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1


def check_floors(crate, floors):
    """Imports that go up, or to no floor; methods beside types of other folders."""
    found = []
    height = {name: at for at, name in enumerate(floors)}
    types, methods = {}, []
    for path in tracked(f"{crate}/src/*.rs"):
        relative = path.relative_to(ROOT)
        here = floor_of(crate, path)
        if here not in height:
            found.append(f"{relative}: '{here}' is on no floor of {crate}")
            continue
        if TEST_FILES.search(str(relative.relative_to(f"{crate}/src"))):
            continue
        text = code_of(without_tests(path.read_text()))
        for name, at in names_imported(
            text, len(relative.parts) - len(pathlib.Path(crate).parts) - 1
        ):
            line = text.count("\n", 0, at) + 1
            # What is no floor is an item of the root, where everything comes together.
            name = name if name in height else floors[-1]
            if height[name] > height[here]:
                found.append(f"{relative}:{line}: {here} imports {name}, which is above it")
        for match in re.finditer(
            r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|union) (\w+)", text, re.M
        ):
            types.setdefault(match.group(1), set()).add(here)
        for match in re.finditer(
            r"^impl(?:<[^{]*?>)? (\w+)(?:<[^{]*>)? (?:where[^{]*)?\{", text, re.M
        ):
            methods.append((match.group(1), here, relative))
    for name, here, relative in methods:
        if name in types and here not in types[name]:
            found.append(f"{relative}: methods of {name}, a type of {', '.join(types[name])}")
    return found


def paths_of(text):
    """Paths that a text names, and what each is called there: `use a::{b, c as d};` as two."""
    trees = 1
    while trees:
        text, trees = re.subn(
            r"([\w:]+)::\s*\{([^{}]*)\}",
            lambda tree: ", ".join(
                f"{tree[1]}::{part.strip()}" for part in tree[2].split(",") if part.strip()
            ),
            text,
        )
    for path, name in re.findall(r"(?<![\w:])((?:\w+::)+\w+)\b(?!!)(?: as (\w+))?", text):
        parts = tuple(path.removesuffix("::self").split("::"))
        yield parts, name or parts[-1]


def module_of(modules, names, here, path):
    """The file where something is defined that `here` calls by this path, if it is of the crate."""
    at, first = here, here + path[:1]
    if path[0] == "crate":
        at, path = (), path[1:]
    elif path[0] not in ("self", "super") and first not in modules:
        return None
    while path and path[0] in ("self", "super"):
        at, path = at[:-1] if path[0] == "super" else at, path[1:]
    while path and at + path[:1] in modules:
        at, path = at + path[:1], path[1:]
    # What is imported there is defined elsewhere.
    other = names.get(at, {}).get(path[0]) if path else None
    return (module_of(modules, names, at, other) or at) if other else at


def check_circles(crate):
    """Files that import each other in a circle. To export what another file defines is no use of
    it unless its name stands elsewhere too; who imports it from there imports it from that file."""
    modules, names, imports = {}, {}, {}
    for path in tracked(f"{crate}/src/*.rs"):
        relative = path.relative_to(ROOT / crate / "src")
        parts = relative.with_suffix("").parts
        at = () if parts in (("lib",), ("main",)) else tuple(p for p in parts if p != "mod")
        modules[at] = ""
        if not TEST_FILES.search(str(relative)):
            text = code_of(without_tests(path.read_text()))
            # In a module inside a file, what is above is the file.
            text = re.sub(r"^( +use )super::", r"\1self::", text, flags=re.M)
            modules[at] = re.sub(r"\(in [\w:]+\)", "", text)
    for at, text in modules.items():
        uses = re.findall(r"^(?:pub(?:\(\w+\))? )?use ([^;]+);", text, re.M)
        names[at] = {name: path for use in uses for path, name in paths_of(use)}
    for at, text in modules.items():
        exported = r"^pub(?:\(\w+\))? use ([^;]+);"
        used = re.sub(exported, "", text, flags=re.M)
        paths = [path for path, _ in paths_of(used)]
        for use in re.findall(exported, text, re.M):
            paths += [p for p, name in paths_of(use) if re.search(rf"\b{name}\b", used)]
        found = {module_of(modules, names, at, path) for path in paths}
        imports[at] = found - {None, at}
    reached = {at: set() for at in modules}
    for at, seen in reached.items():
        ways = [at]
        while ways:
            new = imports.get(ways.pop(), set()) - seen
            seen |= new
            ways += new
    circular = sorted("/".join(at) for at, seen in reached.items() if at in seen)
    return [f"{crate}/src: {at} imports itself through others" for at in circular]


def functions(text):
    """Name, first line and number of lines of each function of a formatted file."""
    lines = text.split("\n")
    start = re.compile(
        r"^(\s*)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)")
    for at, line in enumerate(lines):
        match = start.match(line)
        if not match or line.rstrip().endswith((";", "}")):
            continue
        end = at + 1
        closing = match.group(1) + "}"
        while end < len(lines) and lines[end] != closing and not (
            lines[end].startswith(match.group(1) + ")") and lines[end].endswith(";")
        ):
            end += 1
        yield match.group(2), at + 1, end - at + 1


def check_lengths():
    """Functions and lines that are too long."""
    found = []
    for path in tracked("*.rs", "*.py", "*.c", "*.h", "*.cc", "*.sh", "*.toml", "Makefile"):
        relative, text = path.relative_to(ROOT), path.read_text()
        for at, line in enumerate(text.split("\n")):
            if len(line) > COLUMNS:
                found.append(f"{relative}:{at + 1}: {len(line)} columns")
        if path.suffix == ".rs":
            for name, line, length in functions(text):
                if length > LINES_OF_A_FUNCTION:
                    found.append(f"{relative}:{line}: {name} has {length} lines")
    for path in tracked("*.md"):
        fenced = False
        for at, line in enumerate(path.read_text().split("\n")):
            fenced ^= line.startswith("```")
            if len(line) > COLUMNS and not fenced and not line.startswith(("|", "<!--")):
                found.append(f"{path.relative_to(ROOT)}:{at + 1}: {len(line)} columns")
    return found


def check_architecture():
    """Paths and symbols of ARCHITECTURE.md that do not exist."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    code = "\n".join(path.read_text() for path in tracked("*.rs", "*.c", "*.h", "*.py", "*.toml"))
    found = []
    for target in set(re.findall(r"\]\((?!http|#)([^)#]+)", text)):
        if not (ROOT / target).exists():
            found.append(f"ARCHITECTURE.md: there is no {target}")
    for span in sorted(set(re.findall(r"`([^`\n]+)`", text))):
        for name in re.findall(
            r"[A-Za-z_][A-Za-z_0-9]*(?=\()|[A-Z][A-Za-z0-9]+::\w+|\w+::\w+", span
        ):
            last = name.split("::")[-1]
            if not re.search(rf"\b{re.escape(last)}\b", code):
                found.append(f"ARCHITECTURE.md: there is no {name} in the code")
    return found


def check_clocks():
    """Places that read a clock that somebody may set."""
    found = []
    for path in tracked("crates/*/src/*.rs", "torture/src/*.rs"):
        relative = str(path.relative_to(ROOT))
        text = code_of(without_tests(path.read_text()))
        for match in SETTABLE_CLOCK.finditer(text) if relative not in NAMED_FOR else ():
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{relative}:{line}: {match.group(0)} may jump: use Instant")
    return found


def check_layout():
    """Names of the preload library's linker script that are not in the code any more."""
    crates = {"overspill": "engine", "overspill_os": "os", "overspill_preload": "preload"}
    code = {
        crate: "\n".join(
            f"{path.stem} {path.parent.name} {code_of(path.read_text())}"
            for path in tracked(f"crates/{folder}/src/*.rs")
        )
        for crate, folder in crates.items()
    }
    found = []
    script = (ROOT / "crates/preload/start.ld").read_text()
    for crate, path in re.findall(r"\*(overspill\w*?)((?:[\d*.]\w*)+\*?)\)", script):
        for part in re.findall(r"\d+[a-zA-Z_]\w*|[a-zA-Z_]\w*", path):
            # Each name has its length before it: `4init11constructor`. The last may be cut short.
            while part:
                length, rest = re.match(r"(\d*)(\w*)", part).groups()
                name, part = (rest[: int(length)], rest[int(length) :]) if length else (rest, "")
                missing = int(length) - len(name) if length else 0
                if not re.search(rf"\b{name}\w{{{missing}}}\b", code[crate]):
                    found.append(f"crates/preload/start.ld: there is no {name} in {crate}")
    return found


def check_licences():
    """Crates that may be published without the text of their licences."""
    return [
        f"{path.relative_to(ROOT).parent}: there is no {name} to be published with it"
        for path in tracked("crates/*/Cargo.toml")
        if "publish = false" not in path.read_text()
        for name in ("LICENSE-APACHE", "LICENSE-MIT")
        if not (path.parent / name).is_file()
    ]


def count(crate):
    """Lines of a crate without tests, and its longest function."""
    lines, longest = 0, 0
    for path in tracked(f"{crate}/src/*.rs"):
        relative = path.relative_to(ROOT / crate / "src")
        if TEST_FILES.search(str(relative)):
            continue
        text = without_tests(path.read_text())
        lines += text.count("\n")
        longest = max([longest, *(length for _, _, length in functions(text))])
    return f"{crate}: {lines} lines without tests, the longest function has {longest}"


def main():
    found = [line for crate, floors in FLOORS.items() for line in check_floors(crate, floors)]
    found += [line for crate in FLOORS for line in check_circles(crate)]
    found += check_lengths() + check_architecture() + check_clocks() + check_layout()
    found += check_licences()
    print(
        "\n".join(
            found + [f"tidy: {len(found)} findings"] if found else ["tidy: all is as it should be"]
        )
    )
    if "--count" in sys.argv:
        crates = [
            path.parent.relative_to(ROOT)
            for path in tracked("*/Cargo.toml")
            if (path.parent / "src").exists()
        ]
        print("\n".join(map(count, map(str, crates))))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
