"""Builds the compiled noise kernel where it is asked for: `PRIVLEARN_COMPILE=1 pip install .`

Without that the package is the same on every system, and noise is made by PyTorch's operations.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/privlearn/core/mechanisms/noise_kernel.c"
#: One name on all systems: `ctypes` loads a library whatever its name ends with.
BUILT = "src/privlearn/core/mechanisms/_noise_kernel.so"
#: Every operation is rounded by itself: the draws have to be those of PyTorch's operations, to the
#: bit.
FLAGS = ("-O3", "-std=c11", "-fPIC", "-shared", "-ffp-contract=off", "-fno-trapping-math")
#: On Windows the compiler is MinGW's: its own library becomes part of the file.
WINDOWS = ("-static-libgcc",)


def compile_command(environment: Mapping[str, str], *, windows: bool) -> list[str]:
    """The command that compiles the kernel: by `CC`, for the processors of `ARCHFLAGS` (macOS)."""
    chosen = environment.get("CC") or ("gcc" if windows else "cc")
    compiler = shlex.split(chosen, posix=not windows)  # a path of Windows has backslashes
    processors = shlex.split(environment.get("ARCHFLAGS", ""))
    system = WINDOWS if windows else ()
    return [*compiler, *processors, *FLAGS, *system, SOURCE, "-o", BUILT, "-lm"]


class NoiseKernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles one file, and makes the wheel one for this kind of system."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a wheel, or an installation that can be edited, is made."""
        if os.environ.get("PRIVLEARN_COMPILE", "") in ("", "0"):
            return
        command = compile_command(os.environ, windows=os.name == "nt")
        try:
            subprocess.run(command, check=True, cwd=self.root)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(
                f"PRIVLEARN_COMPILE is set, and the C compiler {command[0]!r} failed: {error}. "
                "Set CC to one, or leave PRIVLEARN_COMPILE unset: noise is then made by PyTorch's "
                "operations"
            ) from error
        build_data["artifacts"].append(str(Path("/") / BUILT))
        build_data["pure_python"] = False
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{system}"
