"""
The front end's side of a zygote: start it, ask it, end it.

Covered: a zygote that dies by itself is reported with what it printed; a front end that dies
takes its zygotes along, since their sockets end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.channel import Channel
from harness.discovery import Catalogue, Found, Unlisted
from harness.errors import ConfigurationError, HarnessError, WorkspaceError, ZygoteDied

_STOP_SECONDS = 10.0
_PRINTED_SIZE_MAX = 8000
# Without its asserts, which PYTHONOPTIMIZE takes out, a check holds whatever it sees.
_DROPPED = ("LC_", "PYTEST_", "COV", "PYTHONOPTIMIZE", "PYTHONINSPECT")
_ERRORS: dict[str, type[HarnessError]] = {
    "ConfigurationError": ConfigurationError,
    "WorkspaceError": WorkspaceError,
}


class ZygoteClient:
    """
    One zygote process; a context manager that ends it.

    Requests and replies alternate: :meth:`ask` sends, :meth:`answer` waits.
    """

    def __init__(self, import_path: Sequence[Path] = ()) -> None:
        ours, theirs = socket.socketpair()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env=_environment(import_path),
                start_new_session=True,
            )
        self._channel = Channel(ours)

    def __enter__(self) -> ZygoteClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector: readable when an answer waits."""
        return self._channel.fileno()

    def call(self, operation: str, **arguments: Any) -> Any:
        """Ask and wait. Raises: as :meth:`answer`."""
        self.ask(operation, **arguments)
        return self.answer()

    def ask(self, operation: str, **arguments: Any) -> None:
        """Send a request. Raises: ZygoteDied: the process is gone."""
        try:
            self._channel.send({"operation": operation, **arguments})
        except OSError:
            raise self._dead() from None

    def answer(self) -> Any:
        """
        Return the answer to the request sent last.

        Raises: ConfigurationError, WorkspaceError: what the zygote found. ZygoteDied: it is gone.
        """
        try:
            reply = self._channel.receive()
        except EOFError:
            raise self._dead() from None
        if "error" in reply:
            raise _ERRORS[reply["error"]](reply["message"])
        return reply["value"]

    def catalogue(self, targets: Sequence[str], folder: Path) -> Catalogue:
        """Return every campaign that the targets name, and what cannot be listed."""
        listed = self.call("list", targets=list(targets), folder=str(folder))
        return Catalogue(
            tuple(Found(**one) for one in listed["campaigns"]),
            tuple(Unlisted(**one) for one in listed["unlisted"]),
        )

    def list(self, targets: Sequence[str], folder: Path) -> Sequence[Found]:
        """Return every campaign that the targets name. Raises: ConfigurationError: not all is."""
        catalogue = self.catalogue(targets, folder)
        if catalogue.unlisted:
            raise ConfigurationError(catalogue.reasons)
        return catalogue.campaigns

    def close(self) -> None:
        """End the process and every child of it."""
        self._channel.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._printed.close()

    def _dead(self) -> ZygoteDied:
        try:
            status = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return ZygoteDied(f"a worker process (pid {self.pid}) closed its socket and lives on.")
        self._printed.seek(0)
        printed = self._printed.read().decode(errors="replace")[-_PRINTED_SIZE_MAX:].strip()
        how = f"with status {status}" if status >= 0 else f"by signal {-status}"
        return ZygoteDied(
            f"a worker process of the harness ended {how}. Did an import of the campaign end it, "
            f"or did the store kill its parent process?\n{printed}".rstrip()
        )


def _environment(import_path: Sequence[Path]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    return {
        **kept,
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        "LANG": "C.UTF-8",
        "CRASHCONFORM_IMPORT_PATH": json.dumps([str(path) for path in import_path]),
    }
