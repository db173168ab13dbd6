"""Java: the same program with each collector, and the Java compiler."""

import shutil
import subprocess

from case import PATH, Case

WORK = """
import java.util.*;
import java.util.concurrent.*;

public class Work {
    static long work(int number) {
        Map<String, int[]> table = new HashMap<>();
        for (int i = 0; i < 40_000; i++)
            table.put(number + " " + i, new int[] {i, i * 7919 % 1_000_003, 0, 0, 0, 0, 0, 0});
        long sum = 0;
        for (int round = 0; round < 3; round++)
            for (Map.Entry<String, int[]> entry : table.entrySet()) {
                entry.setValue(Arrays.copyOf(entry.getValue(), 24));
                sum = (sum + entry.getKey().length() * (long) entry.getValue()[1]) % 1_000_000_007;
            }
        return sum;
    }

    public static void main(String[] words) throws Exception {
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < 60; i++) {
            byte[] piece = new byte[1 << 20];
            Arrays.fill(piece, (byte) i);
            kept.add(piece);
        }
        ExecutorService pool = Executors.newFixedThreadPool(3);
        List<Future<Long>> sums = new ArrayList<>();
        for (int n = 0; n < 6; n++) { int number = n; sums.add(pool.submit(() -> work(number))); }
        for (Future<Long> sum : sums) System.out.println(sum.get());
        pool.shutdown();
        long all = 0;
        for (byte[] piece : kept) for (int i = 0; i < piece.length; i += 1000) all += piece[i];
        System.out.println(all);
    }
}
"""


def compile_work(folder):
    folder.run("javac -d . Work.java")


def lacks(option):
    """An `excuse`: this Java is built without a collector."""

    def excuse():
        java = shutil.which("java", path=PATH)
        status = subprocess.run([java, option, "-version"], stderr=subprocess.DEVNULL).returncode
        return f"this Java does not know {option}" if status else None

    return excuse


def collector(name, option, quick=False):
    command = ["java", option, "-Xms160m", "-Xmx320m", "-cp", "input", "Work"]
    # The code cache is executable; class data, tables of the collector and stacks of its threads
    # are not on the heap.
    settings = {
        "files": {"Work.java": WORK},
        "prepare": compile_work,
        "needs": ("javac",),
        "beside": 64,
    }
    return Case(f"java-{name}", command, quick=quick, excuse=lacks(option), **settings)


def many_classes(folder):
    for number in range(folder.size(120, 40)):
        methods = "".join(
            f"  public java.util.List<String> m{i}(int a) {{ var l = new "
            "java.util.ArrayList<String>();"
            f' for (int k = 0; k < a; k++) l.add("c{number}" + k * {i}); return l; }}\n'
            for i in range(40)
        )
        folder.write(f"source/C{number}.java", f"public class C{number} {{\n{methods}}}\n")


CASES = [
    collector("serial", "-XX:+UseSerialGC", quick=True),
    collector("parallel", "-XX:+UseParallelGC"),
    collector("g1", "-XX:+UseG1GC", quick=True),
    collector("z", "-XX:+UseZGC", quick=True),
    collector("shenandoah", "-XX:+UseShenandoahGC"),
    Case(
        "javac",
        "javac -d out input/source/*.java && cat out/*.class | sha256sum",
        needs=("javac",),
        prepare=many_classes,
        beside=64,
    ),
]
