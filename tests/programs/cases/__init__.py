"""The table of programs, by kind."""

import fnmatch

from . import builds, data, interpreters, jvm, media, servers, tools

MODULES = (interpreters, data, jvm, builds, servers, media, tools)
CASES = [case for module in MODULES for case in module.CASES]


def select(patterns, quick):
    """The cases whose names fit one of the patterns (none: all); only the quick ones of them where
    `quick`."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in CASES):
            raise KeyError(pattern)
    chosen = [
        c for c in CASES if not patterns or any(fnmatch.fnmatchcase(c.name, p) for p in patterns)
    ]
    return [case for case in chosen if case.quick or not quick]
