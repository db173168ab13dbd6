"""Tools that trace, change who they are, enter namespaces, or hold much in memory: gdb, strace, su,
bwrap, git, gpg."""

from case import Case, without, words

WORK = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct part { int number; char name[56]; struct part *next; };
unsigned work(int count) {
    struct part *first = NULL;
    unsigned sum = 0;
    for (int i = 0; i < count; i++) {
        struct part *part = malloc(sizeof *part);
        part->number = i;
        snprintf(part->name, sizeof part->name, "part %d", i * 7919);
        part->next = first;
        first = part;
    }
    for (struct part *p = first; p; p = p->next) sum = sum * 31 + p->number + strlen(p->name);
    while (first) { struct part *next = first->next; free(first); first = next; }
    return sum;
}
int main(int argc, char **argv) { printf("%u\\n", work(atoi(argv[1]))); return 0; }
"""

# What a program does that has changed who it is: who am I, and memory that does not fit.
WHO = """
import os, subprocess
print(os.getresuid(), os.getresgid(), sorted(os.getgroups()))
table = {i: str(i) * 20 for i in range(300_000)}
print(sum(map(len, table.values())),
      subprocess.run(["sh", "-c", "id -u"], capture_output=True).stdout)
pid = os.fork()
if pid == 0:
    os._exit(len(table[299_999]))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def compile_work(folder):
    folder.run("gcc -g -O0 -o work work.c")


def with_work(name, command, **settings):
    files = {"work.c": WORK}
    return Case(
        name, command, quick=True, needs=("gcc",), files=files, prepare=compile_work, **settings
    )


def who(name, command, **settings):
    """A command that runs a Python script as somebody else."""
    return Case(name, command, quick=True, needs=("python3",), files={"who.py": WHO}, **settings)


def repository(folder):
    folder.write("text", words(folder.size(600_000, 200_000)))
    folder.run(
        """
git init -q repository && cd repository
git config user.name tester && git config user.email t@example.org
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
for i in 1 2 3 4; do
    split -l 20000 ../text part-; sed -i "s/ the 1/ the $i/" part-*
    git add . && git commit -qm "commit $i"
done
"""
    )


def copy_of_repository(folder):
    folder.run("cp -a input/repository .")


#: A table larger than a cache, sorted and changed.
SQL = """
pragma temp_store = memory; pragma cache_size = -{cache};
create table t (a integer primary key, b text, c integer);
insert into t select value, 'row ' || (value * 7919 % 1000003) || printf('%.*c', 300, 'x'),
  value % 977 from generate_series(1, {count});
create index i on t (b);
select count(*), sum(length(b)) from t where b > 'row 5';
select c, count(*), sum(a) from (select * from t order by b) group by c order by c limit 2;
update t set b = b || 'x' where c % 3 = 0;
"""


def database(folder):
    count = folder.size(400_000, 50_000)
    script = SQL.format(cache=200000, count=count) + """\
select md5 from (select count(distinct b) as md5 from t);
vacuum into 'copy.db';
"""
    folder.write("script.sql", script)


GDB = [
    "gdb",
    "-nx",
    "-batch",
    "-ex",
    "set debuginfod enabled off",
    "-ex",
    "break work",
    "-ex",
    "run 1000000",
    "-ex",
    "bt",
    "-ex",
    "finish",
    "-ex",
    "continue",
    "input/work",
]

CASES = [
    with_work(
        "gdb",
        GDB,
        compared=True,
        normalise=without(
            r"^\[.*\n", r"^Using host.*\n", r"^warning: .*\n", r"0x[0-9a-f]+", r"^$\n"
        ),
        beside=48,  # the program that it runs has a budget of its own
    ),
    with_work(
        "strace",
        ["strace", "-f", "-o", "trace", "-e", "trace=read,write,openat", "input/work", "1000000"],
    ),
    # What it runs is run without a budget, and it keeps the symbols of the preloaded library.
    with_work(
        "valgrind", ["valgrind", "-q", "--error-exitcode=9", "input/work", "20000"], beside=100
    ),
    who("su", ["su", "nobody", "-s", "/bin/sh", "-c", "exec python3 input/who.py"]),
    who(
        "setpriv",
        [
            "setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "python3",
            "input/who.py",
        ],
    ),
    who("unshare", ["unshare", "-r", "python3", "input/who.py"]),
    who(
        "bwrap",
        [
            "bwrap",
            "--ro-bind",
            "/",
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--unshare-all",
            "python3",
            "input/who.py",
        ],
    ),
    Case(
        "tmux",
        "tmux -S socket -f /dev/null new-session -d"
        " 'seq 1 200000; tmux -S socket wait-for -S done; sleep 100' && "
        "tmux -S socket set history-limit 100000 && tmux -S socket wait-for done && "
        "tmux -S socket capture-pane -p | head -3; "
        "tmux -S socket kill-server",
        compared=False,
        quick=True,
        needs=("tmux",),
        env={"TERM": "xterm"},
    ),
    Case(
        "ssh-keygen",
        "ssh-keygen -q -t rsa -b 2048 -N '' -f key && echo text >text && "
        "ssh-keygen -q -Y sign -f key -n file text && "
        'echo "tester $(cat key.pub)" >signers && '
        "ssh-keygen -Y verify -f signers -I tester -n file -s text.sig <text | cut -c1-40",
        quick=True,
        needs=("ssh-keygen",),
    ),
    Case(
        "gpg",
        "export GNUPGHOME=$PWD/gnupg && mkdir -m 700 gnupg && "
        "gpg -q --batch --passphrase '' --quick-gen-key tester ed25519 default never 2>log && "
        "gpg -q --batch --trust-model always -r tester -e --yes -o text.gpg input/text 2>>log; "
        "gpg -q --batch --passphrase x --pinentry-mode loopback -c -o text.sym input/text && "
        "gpg -q --batch --passphrase x --pinentry-mode loopback -d text.sym | sha256sum; "
        "gpgconf --kill all",
        quick=True,
        needs=("gpg", "gpgconf"),
        prepare=lambda folder: folder.write("text", words(100_000)),
    ),
    Case(
        "git-repack",
        "cd repository && git -c pack.threads=2 repack -adfq --window=60 && git fsck 2>&1 && "
        "git cat-file --batch-all-objects --batch-check | sha256sum",
        quick=True,
        needs=("git",),
        prepare=repository,
        setup=copy_of_repository,
    ),
    Case(
        "sqlite",
        "sqlite3 data.db <input/script.sql && sha256sum <copy.db",
        quick=True,
        needs=("sqlite3",),
        prepare=database,
    ),
]
