"""What options may be: shards, seconds, the file for the report, the folder to keep roots in."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from harness.errors import ConfigurationError


class Shard(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """``I/N``: every N-th boundary from the I-th on."""

    name = "I/N"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Return (I, N)."""
        if isinstance(value, tuple):
            return value
        matched = re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(value), re.ASCII)
        if matched is None:
            self.fail(f"{value!r} is not I/N, such as 2/8.", param, ctx)
        index, count = int(matched[1]), int(matched[2])
        if not 1 <= index <= count:
            self.fail(f"{value!r}: I must be in [1, N], and N at least 1.", param, ctx)
        return index, count


class Seconds(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A number of seconds, finite and more than 0."""

    name = "SECONDS"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return it as a float."""
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        if not math.isfinite(seconds) or seconds <= 0:
            self.fail(f"{value!r} must be finite and more than 0.", param, ctx)
        return seconds


class ReportFile:
    """
    Where the JSON report goes; proved writable when it is made, before anything runs.

    A regular file is replaced at once or not at all; a device or pipe is written to; ``-`` is
    standard output.

    Raises: ConfigurationError: it cannot be written.
    """

    def __init__(self, target: str) -> None:
        self.is_stdout = target == "-"
        self._shown = target
        self._path = Path(os.path.realpath(target))
        self._part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        if not self.is_stdout:
            self._prove()

    def _prove(self) -> None:
        if self._path.is_dir():
            raise ConfigurationError(f"--json {self._shown}: that is a directory; name a file.")
        try:
            if self._is_special():
                with open(self._path, "ab"):
                    return
            with open(self._part, "xb"):
                pass
            self._part.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"--json {self._shown} cannot be written: {error.strerror or error}."
            ) from None

    def _is_special(self) -> bool:
        return self._path.exists() and not self._path.is_file()

    def write(self, report: dict[str, Any]) -> None:
        """Write the report. Raises: ConfigurationError: it cannot be written any more."""
        text = json.dumps(report, indent=2) + "\n"
        if self.is_stdout:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        try:
            self._write_file(text.encode())
        except OSError as error:
            raise ConfigurationError(
                f"--json {self._shown} could not be written: {error.strerror or error}."
            ) from None

    def _write_file(self, data: bytes) -> None:
        if self._is_special():
            self._path.write_bytes(data)
            return
        try:
            with open(self._part, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._part.replace(self._path)
        except BaseException:
            self._part.unlink(missing_ok=True)
            raise


def empty_folder(folder: Path) -> Path:
    """
    Make *folder*, or take it where it is empty.

    Raises: ConfigurationError: it holds something, or cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigurationError(
                f"--keep {folder} is not empty; name a new folder, so that nothing is mixed up."
            )
    except OSError as error:
        raise ConfigurationError(
            f"--keep {folder} cannot be used: {error.strerror or error}."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--keep {folder} is not writable.")
    return folder.resolve()
