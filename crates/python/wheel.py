#!/usr/bin/env python3
"""Builds the wheel of the Python module, and tests it as its users have it.

    crates/python/wheel.py [--test [ARGUMENT...]]

In a fresh virtual environment in the target directory: maturin builds the wheel there. With --test
it is installed from the file, its types are checked, and the tests are run, with arguments for
pytest. What is installed comes through pip.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")).resolve()
ENVIRONMENT = TARGET / "python" / "venv"
WHEELS = TARGET / "python" / "wheels"
BUILDS_WITH = ["maturin>=1.9,<2"]
TESTS_WITH = ["pytest", "pandas", "scipy", "mypy"]


def run(*command, cwd=HERE):
    """Runs a program, and ends with its status if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def install(*what):
    """Installs into the environment."""
    run(ENVIRONMENT / "bin" / "python", "-m", "pip", "install", "--quiet", *what)


def build():
    """The wheel, built anew."""
    for old in (ENVIRONMENT, WHEELS):
        shutil.rmtree(old, ignore_errors=True)
    venv.create(ENVIRONMENT, with_pip=True)
    install(*BUILDS_WITH)
    maturin = ENVIRONMENT / "bin" / "maturin"
    run(maturin, "build", "--release", "--target-dir", TARGET, "--out", WHEELS)
    [wheel] = WHEELS.glob("*.whl")
    return wheel


def main():
    wheel = build()
    print(wheel)
    if sys.argv[1:2] == ["--test"]:
        install(wheel, *TESTS_WITH)
        python = ENVIRONMENT / "bin" / "python"
        # Elsewhere, so that what is imported is what was installed.
        away = TARGET / "python"
        run(python, "-m", "mypy", "--config-file", HERE / "pyproject.toml", "-p", "overspill",
            cwd=away)
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "tests",
            *sys.argv[2:], cwd=away)


if __name__ == "__main__":
    main()
