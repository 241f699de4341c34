"""
What the plugin does in a project with campaigns: collect them, share them, sum up.

A file that holds campaigns belongs to this plugin alone, also where it matches ``python_files`` or
stands on the command line: no other collector (Module, doctest) sees it, and a package that holds
campaigns is collected as a plain folder, since pytest would import it before the first item in it.
A ``conftest.py`` beside campaigns is imported by pytest as ever.

What runs campaigns is imported when the first file that may hold some is collected.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.configuration import Project, find_project
from harness.errors import ConfigurationError, WorkspaceError
from harness.pytest_places import may_hold_campaigns

if TYPE_CHECKING:
    from harness.pytest_folder import RunFolder
    from harness.pytest_session import CampaignSession

_SHARED = "crashconform"


@dataclass(frozen=True)
class Settings:
    """
    The plugin's options.

    Attributes:
        mode: "representative", "exhaustive" or "none".
        shard: (I, N): every N-th boundary from the I-th on, 1-based.
        timeout_seconds: For each child.
        workdir: Where to make the run's folder, or None.
    """

    mode: str
    shard: tuple[int, int]
    timeout_seconds: float
    workdir: Path | None


def register(config: pytest.Config, settings: Settings) -> bool:
    """
    Add the hooks where the project has campaigns; return whether it has.

    Raises: pytest.UsageError: the table in pyproject.toml is wrong.
    """
    try:
        project = find_project(config.rootpath)
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from None
    if project is not None:
        hooks = CampaignHooks(config, project, settings)
        config.pluginmanager.register(hooks, "crashconform-campaigns")
    return project is not None


class CampaignHooks:
    """The hooks of one pytest process."""

    def __init__(self, config: pytest.Config, project: Project, settings: Settings) -> None:
        self._config = config
        self._project = project
        self._settings = settings
        self._made_folder: RunFolder | None = None
        self._made_session: CampaignSession | None = None
        self._processes = 0

    @property
    def _folder(self) -> RunFolder:
        if self._made_folder is None:
            from harness.pytest_folder import RunFolder

            given = getattr(self._config, "workerinput", {}).get(_SHARED)
            self._made_folder = RunFolder(self._settings.workdir, given)
        return self._made_folder

    @property
    def _session(self) -> CampaignSession:
        if self._made_session is None:
            from harness.pytest_items import SESSION
            from harness.pytest_session import CampaignSession
            from harness.runner import Options

            settings = self._settings
            options = Options(
                timeout_seconds=settings.timeout_seconds,
                shard=settings.shard,
                is_representative=settings.mode == "representative",
                import_path=(self._project.folder,),
            )
            self._made_session = CampaignSession(self._project, options, self._folder)
            self._config.stash[SESSION] = self._made_session
        return self._made_session

    def _holds(self, path: Path) -> bool:
        """Say whether a file or folder holds campaigns; import them only where it may."""
        return may_hold_campaigns(self._project, path) and self._session.listing.holds(path)

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, Any, Any]:
        """Put a file with campaigns in the place of whatever else would collect it."""
        others = yield
        is_off = self._settings.mode == "none"
        if file_path.suffix != ".py" or (is_off and not others) or not self._holds(file_path):
            return others
        from harness.pytest_items import CampaignFile, UnusedFile

        kind = UnusedFile if is_off else CampaignFile
        return [kind.from_parent(parent, path=file_path)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Collect a package that holds campaigns as a plain folder, which is not imported."""
        is_package = self._settings.mode != "none" and (path / "__init__.py").is_file()
        if is_package and self._holds(path):
            return pytest.Dir.from_parent(parent, path=path)
        return None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """
        Give a worker of xdist the run's folder and a number of its own.

        Raises: pytest.UsageError: the folder cannot be made.
        """
        count = len(node.nodemanager.specs)
        try:
            shared = self._folder.share(number=self._processes, processes=count)
        except WorkspaceError as error:
            raise pytest.UsageError(str(error)) from None
        node.workerinput[_SHARED] = shared
        self._processes += 1

    def pytest_sessionfinish(self) -> None:
        """End the zygote."""
        if self._made_session is not None:
            self._made_session.close()

    def pytest_unconfigure(self) -> None:
        """Remove the run's folder."""
        self.pytest_sessionfinish()
        if self._made_folder is not None:
            self._made_folder.close()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say in one line what was explored, under which fault model, and what came of it."""
        from harness.pytest_summary import summary_line

        index, count = self._settings.shard
        mode = self._settings.mode
        line = summary_line(
            terminalreporter.stats, mode if count == 1 else f"{mode}, shard {index}/{count}"
        )
        if line:
            terminalreporter.write_line(line)
