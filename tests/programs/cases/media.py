"""Media, compression, a browser and an emulator."""

from case import Case, without, words


def text(folder):
    folder.write("text", words(folder.size(400_000, 300_000)))


PAGE = """<html><body><div id="x"></div><script>
const table = [];
for (let i = 0; i < 200000; i++) table.push({ i, text: "item " + i * 7919 % 1000003 });
table.sort((a, b) => a.text < b.text ? -1 : a.text > b.text ? 1 : 0);
const some = table.filter((_, i) => i % 20000 == 0).map(e => e.text);
document.getElementById("x").textContent = some.join(", ");
for (let i = 0; i < 3000; i++) {
  const p = document.createElement("p");
  p.textContent = i;
  document.body.append(p);
}
document.title = document.querySelectorAll("p").length;
</script></body></html>
"""

# A boot sector: in 32-bit mode it fills 128 MiB of RAM, sums them up, writes the sum to the serial
# port and ends QEMU.
BOOT = """
        .code16
        cli
        xor %ax, %ax
        mov %ax, %ds
        in $0x92, %al
        or $2, %al
        out %al, $0x92
        lgdt table
        mov $1, %eax
        mov %eax, %cr0
        ljmp $8, $start
        .code32
start:  mov $16, %ax
        mov %ax, %ds
        mov %ax, %es
        mov $0x200000, %edi
fill:   mov %edi, %eax
        imul $2654435761, %eax, %eax
        mov %eax, (%edi)
        mov %edi, 4(%edi)
        add $64, %edi
        cmp $0x8200000, %edi
        jb fill
        xor %ebx, %ebx
        mov $0x200000, %edi
sum:    add (%edi), %ebx
        rol $1, %ebx
        xor 4(%edi), %ebx
        add $64, %edi
        cmp $0x8200000, %edi
        jb sum
        mov $8, %ecx
digit:  rol $4, %ebx
        mov %ebx, %eax
        and $15, %eax
        add $'a', %al
        mov $0x3f8, %dx
        out %al, %dx
        loop digit
        mov $0xf4, %dx
        xor %eax, %eax
        out %eax, %dx
wait:   jmp wait
        .align 8
gdt:    .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
table:  .word 23
        .long gdt
        .org 510
        .word 0xaa55
"""


def boot_sector(folder):
    folder.run(
        "as --32 -o boot.o boot.s && ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o boot boot.o"
    )


CHROMIUM = [
    "chromium", "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=profile",
]
DUMP = ["--virtual-time-budget=5000", "--dump-dom", "input/page.html"]
# What is not managed of its processes takes 40 MiB (code that V8 makes, shared memory, stacks), and
# as each is forked from one that has much of that, sums of it are more.
BROWSER = {"files": {"page.html": PAGE}, "beside": 48, "least": 96}

CASES = [
    Case(
        "ffmpeg",
        "ffmpeg -v error -f lavfi -i testsrc2=size=1280x720:duration=3:rate=25 -threads 2 "
        "-c:v libx264 -preset medium -f md5 -".split(),
    ),
    Case(
        "imagemagick",
        "/usr/bin/convert -size 1800x1400 -seed 5 plasma:red-blue -blur 0x3 -rotate 30 -resize "
        "70% -depth 8 rgb:- | sha256sum",
        quick=True,
        needs=("/usr/bin/convert",),
        env={"MAGICK_THREAD_LIMIT": "2"},
    ),
    Case(
        "zstd",
        "zstd -q -9 -T2 --long=27 -o text.zst input/text && zstd -q -d --long=27 <text.zst | "
        "sha256sum",
        quick=True,
        needs=("zstd",),
        prepare=text,
    ),
    Case(
        "xz",
        "xz -T2 -2 --block-size=6MiB -c input/text >text.xz && xz -dc text.xz | sha256sum && "
        "sha256sum <text.xz",
        needs=("xz",),
        prepare=text,
    ),
    Case(
        "7z",
        "7z a -bd -mmt2 -mx1 -md=24m -sitext text.7z <input/text >log && 7z x -so text.7z | "
        "sha256sum",
        needs=("7z",),
        prepare=text,
        slow=40,  # it looks matches up all over its dictionary, which does not pack
    ),
    Case("chromium", [*CHROMIUM, "--no-sandbox", *DUMP], **BROWSER),
    Case("chromium-sandbox", [*CHROMIUM, *DUMP], user="nobody", **BROWSER),
    Case(
        "firefox",
        "HOME=$PWD firefox-esr --headless --screenshot $PWD/picture.png file://$PWD/input/page.html"
        " >log 2>&1",
        needs=("firefox-esr",),
        results=("picture.png",),
        **BROWSER,
    ),
    Case(
        "qemu",
        [
            "qemu-system-x86_64",
            "-accel",
            "tcg,tb-size=32",
            "-m",
            "192",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-nodefaults",
            "-no-reboot",
            "-drive",
            "file=input/boot,format=raw,snapshot=on",
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=4",
        ],
        quick=True,
        needs=("as", "ld"),
        files={"boot.s": BOOT},
        prepare=boot_sector,
        normalise=without(r"\x1b[^a-p]*|[\r\n]"),
        status=1,  # what the device makes of 0
        beside=48,  # the code that TCG makes is executable
    ),
]
