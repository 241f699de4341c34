"""
From what stands on the command line to campaigns.

Modules of campaigns are imported in a zygote, never here; a docstring is read from the source.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.client import ZygoteClient
from harness.discovery import Found, Project, find_project, is_path
from harness.errors import ConfigurationError

EXAMPLE = """\
from sqlite3 import connect
from harness import Campaign
class Notes(Campaign):
    def prepare(self, root, run): connect(root / "n.db").execute("create table note(text)")
    def execute(self, root, run):
        with connect(root / "n.db", isolation_level=None) as db:
            run.step("add", lambda: db.execute("insert into note values('a')") and None)
    def observe(self, root): return connect(root / "n.db").execute("select * from note").fetchall()
"""
"""The smallest useful campaign: what somebody without any is shown."""

_TABLE = '[tool.crashconform]\ncampaigns = ["campaigns"]\n'


@dataclass(frozen=True)
class Selection:
    """
    Which campaigns were chosen, and how to import them.

    Attributes:
        campaigns: In order, each once.
        import_path: Folders that come first on the campaigns' import path.
    """

    campaigns: tuple[Found, ...]
    import_path: tuple[Path, ...]


def select(arguments: Sequence[str], folder: Path) -> Selection:
    """
    Return the campaigns that the arguments name; without arguments, all that are configured.

    Args:
        arguments: Names, folders of names, parts of class names, or paths and modules outside of
            the configuration, those with ``:Class`` or without.
        folder: The current folder: paths are relative to it, the project is sought from it.
    Raises: ConfigurationError: nothing is configured, or an argument names nothing. ZygoteDied: an
        import ended the process.
    """
    project = find_project(folder)
    if project is None and not arguments:
        raise ConfigurationError(_nothing_configured(folder))
    import_path = (project.folder, folder) if project else (folder,)
    with ZygoteClient(import_path) as zygote:
        chooser = _Chooser(zygote, project, folder)
        chosen = [one for text in arguments for one in chooser.choose(text)]
        if not arguments:
            chosen = list(chooser.configured)
    unique: dict[tuple[str, str], Found] = {}
    for one in chosen:
        unique.setdefault((one.path, one.class_name), one)
    return Selection(tuple(unique.values()), import_path)


def select_one(argument: str, folder: Path) -> tuple[Found, tuple[Path, ...]]:
    """
    Return the one campaign that an argument names, and its import path.

    Raises: as :func:`select`, and ConfigurationError: it names several.
    """
    selection = select([argument], folder)
    if len(selection.campaigns) > 1:
        names = "\n".join(f"  {one.name}" for one in selection.campaigns)
        raise ConfigurationError(f"{argument!r} names several campaigns; take one:\n{names}")
    return selection.campaigns[0], selection.import_path


class _Chooser:
    """Resolves arguments, with one zygote that lists."""

    def __init__(self, zygote: ZygoteClient, project: Project | None, folder: Path) -> None:
        self._zygote = zygote
        self._folder = folder
        self.configured: Sequence[Found] = (
            zygote.list(project.targets, project.folder) if project else ()
        )

    def choose(self, text: str) -> Sequence[Found]:
        """Return what one argument names. Raises: ConfigurationError: nothing."""
        return self._by_name(text) or self._by_path(text) or self._outside(text)

    def _by_name(self, text: str) -> list[Found]:
        prefix = text.rstrip("/")
        for matches in (
            lambda one: one.name == text,
            lambda one: one.name.startswith((f"{prefix}/", f"{prefix}:")),
            lambda one: one.class_name == text,
            lambda one: text.isidentifier() and text in one.class_name,
        ):
            chosen = [one for one in self.configured if matches(one)]
            if chosen and prefix:
                return chosen
        return []

    def _by_path(self, text: str) -> list[Found]:
        """Return the configured campaigns in a file or below a folder: they keep their names."""
        place, _, class_name = text.partition(":")
        path = Path(os.path.realpath(self._folder / place))
        return [
            one
            for one in self.configured
            if Path(os.path.realpath(one.path)).is_relative_to(path)
            and class_name in ("", one.class_name)
        ]

    def _outside(self, text: str) -> list[Found]:
        """Return campaigns that are not configured, named so that the name finds them again."""
        place, _, class_name = text.partition(":")
        path = self._folder / place
        if path.is_dir() or place.endswith(".py"):
            target = f"./{place}" if not is_path(place) else place
            found = self._zygote.list(
                [f"{target}:{class_name}" if class_name else target], self._folder
            )
            return [replace(one, name=self._path_name(one, place)) for one in found]
        if (class_name or "." in place) and _is_module(place):
            try:
                found = self._zygote.list([text], self._folder)
            except ConfigurationError as error:
                raise ConfigurationError(f"{self._unknown(text)}\n{error}") from None
            return [replace(one, name=f"{one.module}:{one.class_name}") for one in found]
        raise ConfigurationError(self._unknown(text))

    def _path_name(self, one: Found, place: str) -> str:
        given = self._folder / place
        if given.is_file():
            return f"{place}:{one.class_name}"
        inside = Path(one.path).relative_to(os.path.realpath(given))
        return f"{Path(place, inside).as_posix()}:{one.class_name}"

    def _unknown(self, text: str) -> str:
        if not self.configured:
            return (
                f"{text!r} is no campaign: no campaigns are configured at or above {self._folder}, "
                "and it is neither a file, a folder nor module:Class."
            )
        names = sorted(one.name for one in self.configured)
        closest = difflib.get_close_matches(text, names, n=3, cutoff=0.3)
        ordered = [*closest, *(name for name in names if name not in closest)]
        listed = "\n".join(f"  {name}" for name in ordered)
        hint = f" Did you mean {closest[0]!r}?" if closest else ""
        return f"{text!r} is no campaign, file, folder or module:Class.{hint} There are:\n{listed}"


def _is_module(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _nothing_configured(folder: Path) -> str:
    example = "".join(f"    {line}\n" for line in EXAMPLE.splitlines())
    table = "".join(f"    {line}\n" for line in _TABLE.splitlines())
    return (
        f"no campaigns: no pyproject.toml at or above {folder} has the table [tool.crashconform], "
        "and no argument names any.\nA campaign is a few lines, say in campaigns/notes.py:\n\n"
        f"{example}\nThe table to write in pyproject.toml:\n\n{table}\n"
        "Or name a file: crashconform run campaigns/notes.py"
    )


def docstring_of(found: Found) -> str:
    """Return the first line of a campaign's docstring, or nothing; the module is not imported."""
    try:
        tree = ast.parse(Path(found.path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == found.class_name:
            text = (ast.get_docstring(node) or "").strip()
            return text.splitlines()[0] if text else ""
    return ""
