"""
A test run's campaigns, seen from one of its pytest processes: listed, recorded, examined.

The list and the recordings are those of the whole run. Each process has at most one zygote that
examines, which took over the recording of the campaign at hand.

Covered: a zygote that dies costs one examination; a process that dies takes its zygotes along.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.client import ZygoteClient
from harness.configuration import Project
from harness.crash import DETERMINISM
from harness.discovery import Found
from harness.errors import ConfigurationError, HarnessError, WorkspaceError
from harness.pytest_folder import RunFolder
from harness.pytest_places import may_hold_campaigns
from harness.runner import Options, Result, open_worker, record_with, recording_from
from harness.selftest import Problem
from harness.trace import Recording
from harness.verdict import Verdict, Violation


@dataclass(frozen=True)
class Refusal:
    """
    An error that a campaign, a work folder or a dead zygote gave instead of a verdict.

    Attributes:
        kind: "configuration error" or "errored".
        message: In plain words.
    """

    kind: str
    message: str

    @classmethod
    def of(cls, error: HarnessError) -> Refusal:
        """Return what an error says."""
        is_theirs = isinstance(error, ConfigurationError)
        return cls("configuration error" if is_theirs else "errored", str(error))


@dataclass(frozen=True)
class Listing:
    """
    The configured campaigns.

    Attributes:
        campaigns: By the real path of their file, in order.
        broken: Files that cannot be imported, by real path.
        refusal: Why there are none, or None.
    """

    campaigns: Mapping[str, list[Found]]
    refusal: Refusal | None = None
    broken: Mapping[str, Refusal] = field(default_factory=dict)

    def holds(self, path: Path) -> bool:
        """Say whether *path* is a file of campaigns or a folder above one, as far as is known."""
        real = os.path.realpath(path)
        below = real + os.sep
        return self.refusal is not None or any(
            file == real or file.startswith(below) for file in (*self.campaigns, *self.broken)
        )


@dataclass(frozen=True)
class Recorded:
    """
    What came of recording a campaign, the same in every process of the run.

    Attributes:
        found: The campaign.
        data: The recording as JSON, or None.
        problem: Why exploring it is worth nothing, or None.
        refusal: The error that ended the recording, or None.
    """

    found: Found
    data: dict[str, Any] | None = None
    problem: Problem | None = None
    refusal: Refusal | None = None

    @cached_property
    def recording(self) -> Recording | None:
        """The recording, or None."""
        return None if self.data is None else recording_from(self.data)

    @property
    def is_explorable(self) -> bool:
        """Whether its boundaries are worth exploring."""
        return self.data is not None and self.problem is None

    def result(self, *verdicts: Verdict) -> Result:
        """Return it as the command line's result, with verdicts over some boundaries."""
        return Result(
            self.found,
            recording=self.recording,
            chosen=[verdict.boundary for verdict in verdicts],
            verdicts=list(verdicts),
            problem=self.problem,
        )


@dataclass
class CampaignSession:
    """
    The campaigns of one process of a test run.

    Attributes:
        project: Where the campaigns are configured.
        options: How to run them.
        folder: What the processes of the run share.
    """

    project: Project
    options: Options
    folder: RunFolder
    _zygote: ZygoteClient | None = None
    _current: Recorded | None = None
    _divergence: str = ""
    _recorded: dict[Found, Recorded] = field(default_factory=dict)

    @cached_property
    def listing(self) -> Listing:
        """Every configured campaign, or why they cannot be listed."""
        try:
            data = self.folder.once("listing", self._list)
        except WorkspaceError as error:
            return Listing({}, Refusal.of(error))
        if data["refusal"] is not None:
            return Listing({}, Refusal(**data["refusal"]))
        campaigns: dict[str, list[Found]] = {}
        for one in data["campaigns"]:
            found = Found(**one)
            campaigns.setdefault(os.path.realpath(found.path), []).append(found)
        broken = {path: Refusal(**one) for path, one in data["broken"].items()}
        return Listing(campaigns, broken=broken)

    def _list(self) -> dict[str, Any]:
        try:
            with ZygoteClient(self.options.import_path) as zygote:
                listed = zygote.catalogue(self.project.targets, self.project.folder)
            found = listed.campaigns
            strange = [one for one in found if not may_hold_campaigns(self.project, Path(one.path))]
            if strange:
                raise ConfigurationError(_strange_text(self.project, strange[0]))
            # What stands in a file that pytest collects is told there, and costs nothing else.
            broken = [x for x in listed.unlisted if self._is_collected(x.path)]
            if len(broken) < len(listed.unlisted):
                raise ConfigurationError(listed.reasons)
        except HarnessError as error:
            return {"campaigns": [], "refusal": vars(Refusal.of(error)), "broken": {}}
        return {
            "campaigns": [vars(one) for one in found],
            "refusal": None,
            "broken": {
                os.path.realpath(x.path): vars(Refusal("configuration error", x.message))
                for x in broken
            },
        }

    def _is_collected(self, path: str) -> bool:
        return bool(path) and may_hold_campaigns(self.project, Path(path))

    def recorded(self, found: Found) -> Recorded:
        """Return the run's recording of a campaign; make it where nobody did."""
        if found not in self._recorded:
            self._recorded[found] = self._recorded_once(found)
        return self._recorded[found]

    def _recorded_once(self, found: Found) -> Recorded:
        self.close()  # the zygote has the root that a recording needs
        name = hashlib.sha256(f"{found.path}:{found.class_name}".encode()).hexdigest()[:32]
        try:
            data = self.folder.once(f"recording-{name}", lambda: self._record(found))
        except WorkspaceError as error:
            return Recorded(found, refusal=Refusal.of(error))
        problem, refusal = data["problem"], data["refusal"]
        return Recorded(
            found,
            data=data["recording"],
            problem=Problem.from_json(problem) if problem else None,
            refusal=Refusal(**refusal) if refusal else None,
        )

    def _record(self, found: Found) -> dict[str, Any]:
        result = Result(found)
        tested = None
        try:
            with ExitStack() as stack:
                first, second = (stack.enter_context(self._open(found, n)) for n in (0, 1))
                data = record_with(first, second, result)
                if data is not None:
                    tested = first.call("self_test")
        except HarnessError as error:
            return {"recording": None, "problem": None, "refusal": vars(Refusal.of(error))}
        problem = result.problem.as_json() if result.problem else tested
        return {"recording": data, "problem": problem, "refusal": None}

    def _open(self, found: Found, number: int) -> ZygoteClient:
        folder = self.folder
        return open_worker(found, folder.roots, folder.first_root + number, self.options)

    def examine(self, recorded: Recorded, boundary: int) -> Verdict:
        """
        Return the verdict over one boundary of an explorable campaign.

        Raises: ConfigurationError, WorkspaceError: as the zygote found. ZygoteDied: it ended by
            itself; the next examination has a new one.
        """
        zygote = self._zygote_for(recorded)
        if self._divergence:
            violation = Violation("same_trace", self._divergence, "before any crash")
            return Verdict("diverged", boundary, violation)
        try:
            answer = zygote.call("examine", boundary=boundary)
        except (ConfigurationError, WorkspaceError):
            raise
        except BaseException:  # an interrupt too: a late answer would be taken for the next one's
            self.close()
            raise
        return Verdict.from_json(answer)

    def _zygote_for(self, recorded: Recorded) -> ZygoteClient:
        if self._zygote is not None and self._current is recorded:
            return self._zygote
        self.close()
        zygote = self._open(recorded.found, 0)
        try:
            differs = zygote.call("adopt", recording=recorded.data)
        except BaseException:
            zygote.close()
            raise
        self._zygote, self._current = zygote, recorded
        self._divergence = (
            f"the trace differs from run to run: {differs}. It was compared with the one that "
            f"this test run recorded. {DETERMINISM}"
            if differs
            else ""
        )
        return zygote

    def close(self) -> None:
        """End the zygote that examines, with every child of it."""
        zygote, self._zygote, self._current = self._zygote, None, None
        if zygote is not None:
            zygote.close()


def _strange_text(project: Project, found: Found) -> str:
    return (
        f"campaign {found.name} was imported from {found.path}, which is not where "
        f"{list(project.targets)} are in {project.folder}, so pytest does not collect that file. "
        "Move it there, or write the target as the path of its own folder."
    )
