#!/usr/bin/env python3
"""Runs a command under a seccomp profile, as a container runtime would: no runtime is needed.

    under_profile.py PROFILE.json CMD [ARGS]...

The profile is in the form of the OCI, for x86-64 alone: names that this machine's headers do not
know are left out, as libseccomp does.
"""

import ctypes
import json
import os
import re
import struct
import sys

HEADER = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
AUDIT_ARCH_X86_64 = 0xC000003E
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
# Of struct seccomp_data.
NUMBER, ARCH, ARGUMENTS = 0, 4, 16
LOAD, AND, RETURN, JUMP_IF_EQUAL = 0x20, 0x54, 0x06, 0x15


def instruction(code, value, if_true=0, if_false=0):
    return struct.pack("HBBI", code, if_true, if_false, value)


def action_of(rule, default):
    """What a rule says, as the kernel has it."""
    if rule["action"] == "SCMP_ACT_ALLOW":
        return RET_ALLOW
    return RET_ERRNO | rule.get("errnoRet", default)


def program(profile, numbers):
    """The filter: the first rule that matches decides."""
    default = profile.get("defaultErrnoRet", 1)
    code = [instruction(LOAD, ARCH), instruction(JUMP_IF_EQUAL, AUDIT_ARCH_X86_64, 1, 0),
            instruction(RETURN, RET_ERRNO | default), instruction(LOAD, NUMBER)]
    for rule in profile["syscalls"]:
        for number in (numbers[name] for name in rule["names"] if name in numbers):
            body = []
            for arg in rule.get("args", []):
                assert arg["op"] == "SCMP_CMP_MASKED_EQ", arg
                body += [instruction(LOAD, ARGUMENTS + 8 * arg["index"]),
                         instruction(AND, arg["value"]),
                         instruction(JUMP_IF_EQUAL, arg["valueTwo"], 0, 1)]
            body += [instruction(RETURN, action_of(rule, default)), instruction(LOAD, NUMBER)]
            code += [instruction(JUMP_IF_EQUAL, number, 0, len(body)), *body]
    code.append(instruction(RETURN, RET_ERRNO | default))
    return code


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        profile = json.load(file)
    with open(HEADER, encoding="utf-8") as file:
        found = re.findall(r"^#define __NR_(\w+) (\d+)", file.read(), re.M)
    code = program(profile, {name: int(number) for name, number in found})
    text = ctypes.create_string_buffer(b"".join(code))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, head, 0, 0
    ):
        sys.exit(f"under_profile.py: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
