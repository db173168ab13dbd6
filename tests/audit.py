#!/usr/bin/env python3
"""What the dependencies are: known flaws, licences, sources, versions twice.

    tests/audit.py [--lock FILE]

1. The lock file names crates of crates.io only, each with a checksum. Needs nothing.
2. cargo-deny looks at licences, sources and duplicates by deny.toml. Needs cargo-deny.
3. It looks for known vulnerabilities, in a list that it fetches. Needs the network too, or a clone
   of the list in the directory that OVERSPILL_ADVISORIES names.

What cannot be done is skipped, and says so. Exit status 1 when something is not as it should be.
With --lock only the first, of this file.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ADVISORIES = "https://github.com/RustSec/advisory-db"
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
# Seconds for a list that does not come.
FETCH = 60


def package(block):
    """Name, source and checksum of a package of a lock file; None of our own have a source."""
    fields = dict(re.findall(r'^(name|version|source|checksum) = "([^"]*)"$', block, re.M))
    return f"{fields['name']} {fields['version']}", fields.get("source"), fields.get("checksum")


def foreign(text):
    """Packages of a lock file that come from elsewhere, or could be anything."""
    packages = map(package, text.split("[[package]]\n")[1:])
    return [
        name for name, source, checksum in packages
        if source is not None and (source != REGISTRY or checksum is None)
    ]


def look_at_lock(path):
    """Whether a lock file names what it should."""
    found = foreign(path.read_text())
    for name in found:
        print(f"audit: {path}: {name} is not from crates.io with a checksum")
    return not found


def deny(*arguments):
    """Whether cargo-deny finds nothing."""
    return subprocess.run(["cargo", "deny", *arguments], cwd=ROOT, check=False).returncode == 0


def can(*command, environment=None):
    """Whether a command does what it is to do, in time."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=FETCH,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def instead_of(url, directory):
    """The environment in which git has a clone in place of what it would fetch."""
    count = int(os.environ.get("GIT_CONFIG_COUNT", "0"))
    return {
        **os.environ,
        "GIT_CONFIG_COUNT": str(count + 1),
        f"GIT_CONFIG_KEY_{count}": f"url.{pathlib.Path(directory).resolve().as_uri()}.insteadOf",
        f"GIT_CONFIG_VALUE_{count}": url,
    }


def without_flaws():
    """Whether no dependency has a known vulnerability; None where there is no list of them."""
    clone = os.environ.get("OVERSPILL_ADVISORIES")
    if not clone:
        fetched = can("cargo", "deny", "fetch", "db")
        return deny("--offline", "check", "advisories") if fetched else None
    with tempfile.TemporaryDirectory() as place:
        config, path = pathlib.Path(place, "deny.toml"), f'db-path = "{place}/list"\n'
        text = (ROOT / "deny.toml").read_text()
        config.write_text(text.replace("[advisories]\n", f"[advisories]\n{path}", 1))
        options = ("--config", str(config))
        environment = instead_of(ADVISORIES, clone)
        fetched = can("cargo", "deny", *options, "fetch", "db", environment=environment)
        return deny("--offline", *options, "check", "advisories") if fetched else None


def main():
    # What cargo-deny says comes between.
    sys.stdout.reconfigure(line_buffering=True)
    if sys.argv[1:2] == ["--lock"]:
        return 0 if look_at_lock(pathlib.Path(sys.argv[2])) else 1
    results, skipped = [look_at_lock(ROOT / "Cargo.lock")], 0
    if not can("cargo", "deny", "--version"):
        print(
            "SKIPPED: licences and known vulnerabilities of the dependencies: there is no "
            "cargo-deny (cargo install --locked cargo-deny)"
        )
        skipped += 2
    else:
        results.append(deny("check", "licenses", "bans", "sources"))
        flawless = without_flaws()
        if flawless is None:
            print(
                "SKIPPED: known vulnerabilities of the dependencies: the list cannot be had from "
                f"{os.environ.get('OVERSPILL_ADVISORIES') or ADVISORIES}"
            )
            skipped += 1
        else:
            results.append(flawless)
    print(f"{results.count(True)} passed, {results.count(False)} failed, {skipped} skipped")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
