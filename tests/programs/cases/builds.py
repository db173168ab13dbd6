"""Compilers and builds: gcc, clang, rustc and cargo, go, make, cmake with ninja, autoconf's
configure."""

import os
import shutil

from case import CARGO_HOME, REPOSITORY, Case


def c_functions(number, count):
    """A C file with `count` functions that call each other and some of the file before."""
    lines = [
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "#include <string.h>",
        "#include <math.h>",
    ]
    if number:
        lines.append(f"unsigned f{number - 1}_0(unsigned);")
    for i in range(count):
        before = f"f{number}_{i - 1}" if i else (f"f{number - 1}_0" if number else "rand_r_of")
        lines.append(
            f"unsigned f{number}_{i}(unsigned x) {{ unsigned t[{i % 7 + 3}] = {{x, {i}, {number}}};"
            " for (unsigned k = 3; k < x % 50; k++)"
            f" t[k % {i % 7 + 3}] += (t[0] << {i % 13}) ^ (k * {i + 1}u);"
            f" switch (x % {i % 5 + 3}) {{"
            f" case 0: t[0] ^= {before}(x / 2); break; case 1: t[1] += x * 3; break;"
            " default: t[2] -= (unsigned)sqrt((double)x); }"
            f" return x ? t[0] + t[1] * t[2] : {i}u; }}"
        )
    return "\n".join(lines).replace("rand_r_of", "(unsigned)abs") + "\n"


def c_main(files):
    return f"""#include <stdio.h>
unsigned f{files - 1}_0(unsigned);
int main(void) {{
  unsigned sum = 0; for (unsigned i = 0; i < 1000; i++) sum += f{files - 1}_0(i);
  printf("%u\\n", sum); }}
"""


def c_project(folder, files, functions):
    for number in range(files):
        folder.write(f"part{number}.c", c_functions(number, functions))
    folder.write("main.c", c_main(files))


def c_files(folder):
    c_project(folder, folder.size(16, 6), folder.size(400, 120))


def make_project(folder):
    c_project(folder, 6, 15)
    folder.write(
        "Makefile",
        """
OBJECTS := $(patsubst ../input/%.c,%.o,$(wildcard ../input/*.c))
program: $(OBJECTS)
	gcc -o $@ $^ -lm
%.o: ../input/%.c
	gcc -O1 -c -o $@ $<
""",
    )


CXX = """
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Chain {
  std::map<std::string, std::tuple<int, double, std::vector<Chain<N - 1>>>> parts;
  template <class F> void each(F f) {
    for (auto& [k, v] : parts) { f(k); for (auto& c : std::get<2>(v)) c.each(f); } } };
template <> struct Chain<0> { template <class F> void each(F f) { f("end"); } };
int part%d() {
  Chain<%d> chain; std::unordered_map<std::string, std::function<int(int)>> table;
  std::variant<int, std::string, std::vector<int>> v = std::vector<int>{3, 1, 2};
  std::visit([&](auto& x) {
    if constexpr (requires { x.begin(); }) std::sort(x.begin(), x.end()); }, v);
  table["x"] = [](int a) {
    return std::regex_match(std::to_string(a), std::regex("[0-9]+")) ? a : 0; };
  chain.each([&](auto k) { table[std::string(k)] = table["x"]; });
  return table["x"](%d);
}
"""


def cxx_project(folder):
    count = 8
    for number in range(count):
        folder.write(f"part{number}.cc", CXX % (number, number % 3 + 3, number))
    calls = "".join(f"int part{n}();\n" for n in range(count))
    total = " + ".join(f"part{n}()" for n in range(count))
    folder.write(
        "main.cc", f'#include <cstdio>\n{calls}int main() {{ std::printf("%d\\n", {total}); }}\n'
    )
    folder.write(
        "CMakeLists.txt",
        """
cmake_minimum_required(VERSION 3.16)
project(parts CXX)
set(CMAKE_CXX_STANDARD 20)
file(GLOB SOURCES *.cc)
add_executable(program ${SOURCES})
""",
    )


def one_cxx_file(folder):
    folder.write("part.cc", CXX % (0, folder.size(16, 3), 0))


def rust_source(functions):
    parts = ["use std::collections::{BTreeMap, HashMap};"]
    for i in range(functions):
        parts.append(
            f"fn f{i}(x: u64) -> u64 {{"
            " let mut m: BTreeMap<u64, Vec<(u64, String)>> = BTreeMap::new();"
            f" for k in 0..x % 50 {{ m.entry(k * {i} % 7).or_default()"
            f'.push((k, format!("{{k}}-{i}"))); }}'
            " let h: HashMap<_, _> ="
            " m.iter().map(|(k, v)| (k.to_string(), v.len() as u64)).collect();"
            f" h.values().map(|v| v * {i + 1}).sum::<u64>()"
            " + m.values().flatten().map(|p| p.0 + p.1.len() as u64).sum::<u64>() }"
        )
    calls = " + ".join(f"f{i}(i)" for i in range(functions))
    parts.append(
        f'fn main() {{ let s: u64 = (0..100).map(|i| {calls}).sum(); println!("{{s}}"); }}'
    )
    return "\n".join(parts) + "\n"


def one_rust_file(folder):
    folder.write("main.rs", rust_source(folder.size(120, 10)))


def small_crate(folder):
    folder.write(
        "crate/Cargo.toml",
        '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\nbuild = "build.rs"\n',
    )
    folder.write("crate/build.rs", 'fn main() { println!("cargo:rustc-env=MADE=by build.rs") }\n')
    library = rust_source(30).replace("fn main()", "pub fn all()").replace("fn f", "pub fn f")
    folder.write("crate/src/lib.rs", library)
    folder.write("crate/src/main.rs", 'fn main() { small::all(); println!("{}", env!("MADE")); }\n')


def this_repository(folder):
    """A copy of what `cargo build -p overspill-os` reads."""
    leave = shutil.ignore_patterns("target", ".git")
    for name in ("crates", "bench", "torture", "packaging", "tests", "fuzz"):
        if os.path.isdir(os.path.join(REPOSITORY, name)):
            shutil.copytree(
                os.path.join(REPOSITORY, name), folder.file(f"copy/{name}"), ignore=leave
            )
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copy(os.path.join(REPOSITORY, name), folder.file(f"copy/{name}"))


def no_registry():
    """An `excuse`: the crates that this repository uses are not on this machine."""
    here = os.path.isdir(os.path.join(CARGO_HOME, "registry", "cache"))
    return None if here else "the crates of this repository are not there: run `make build` first"


GO = """package main

import "fmt"

func main() {
	table := map[string][]int{}
	for i := 0; i < 100000; i++ { k := fmt.Sprint(i % 977); table[k] = append(table[k], i) }
	sum := 0
	for _, v := range table { sum += len(v) * v[0] }
	fmt.Println(sum)
}
"""

CONFIGURE = """
AC_INIT([sample], [1.0])
AC_CONFIG_HEADERS([config.h])
AC_PROG_CC
AC_PROG_CXX
AC_CHECK_HEADERS([stdlib.h string.h unistd.h sys/mman.h linux/futex.h nothing.h])
AC_CHECK_FUNCS([mmap fork vfork getrandom nothing_of_that_name])
AC_CHECK_LIB([m], [sqrt])
AC_CHECK_SIZEOF([long])
AC_C_BIGENDIAN
AC_OUTPUT
"""

CASES = [
    Case(
        "gcc-lto",
        "gcc -O2 -flto=2 -frandom-seed=1 -o program input/*.c -lm && "
        "./program && sha256sum <program",
        needs=("gcc",),
        prepare=c_files,
    ),
    Case(
        "g++",
        "g++ -std=c++20 -O1 -c -o part.o input/part.cc".split(),
        quick=True,
        prepare=one_cxx_file,
        results=("part.o",),
    ),
    Case(
        "clang++",
        "clang++ -std=c++20 -O2 -c -o part.o input/part.cc".split(),
        prepare=one_cxx_file,
        results=("part.o",),
    ),
    Case(
        "make",
        "make -s -j4 -f ../run/input/Makefile && ./program",
        quick=True,
        needs=("make", "gcc"),
        prepare=make_project,
    ),
    Case(
        "cmake-ninja",
        "cmake -G Ninja -DCMAKE_BUILD_TYPE=Debug -S input/ -B out >log && "
        "ninja -C out -j4 >>log && out/program",
        needs=("cmake", "ninja", "g++"),
        prepare=cxx_project,
    ),
    Case(
        "autoconf",
        "cp input/configure.ac . && autoconf && autoheader && ./configure -q && cat config.h",
        needs=("autoconf", "autoheader", "gcc"),
        files={"configure.ac": CONFIGURE},
    ),
    Case(
        "rustc",
        "rustc -O -o program input/main.rs && ./program",
        quick=True,
        needs=("rustc",),
        prepare=one_rust_file,
    ),
    Case(
        "cargo",
        "cp -r input/crate . && cd crate && cargo build -q --release --offline && "
        "target/release/small",
        needs=("cargo", "rustc"),
        prepare=small_crate,
    ),
    Case(
        "cargo-overspill-os",
        "cp -r input/copy . && cd copy && "
        "cargo build -q --release --offline --target-dir out -p overspill-os && ls out/release",
        needs=("cargo", "rustc"),
        prepare=this_repository,
        excuse=no_registry,
    ),
    # Go's programs are static, so they run unmanaged: the budget does not hold for them.
    Case(
        "go",
        # Each run compiles the standard library anew.
        "GOCACHE=$PWD/cache go build -o program input/main.go && ./program",
        needs=("go",),
        files={"main.go": GO},
        env={"GOFLAGS": "-p=2"},
        beside=2000,
    ),
]
