"""Builds the recorder's native parts; without a compiler the package installs without them."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("harness", "recorder", "native")
MACHINES = ("x86_64", "aarch64")


def extensions() -> list[Extension]:
    """Return the library that records, and the part that reads Python's stack."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return []
    headers = [path.as_posix() for path in sorted(FOLDER.glob("*.h"))]
    stacks = FOLDER / "stacks.c"
    sources = [path.as_posix() for path in sorted(FOLDER.glob("*.c")) if path != stacks]
    # A signal may arrive where the compiler keeps values below the stack's end.
    machine = ["-mno-red-zone"] if platform.machine() == "x86_64" else []
    options = ["-std=gnu11", "-O3", "-fvisibility=hidden", "-fno-stack-protector", "-D_GNU_SOURCE"]
    return [
        Extension(
            "harness.recorder._native",
            sources,
            depends=headers,
            extra_compile_args=options + machine,
            extra_link_args=["-Wl,-z,now", "-Wl,-z,initfirst"],
            optional=True,
        ),
        Extension(
            "harness.recorder._stacks",
            [stacks.as_posix()],
            extra_compile_args=["-std=gnu11", "-O2", "-fno-stack-protector"],
            optional=True,
        ),
    ]


setup(ext_modules=extensions())
