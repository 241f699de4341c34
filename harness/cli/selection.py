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
from harness.configuration import Project, find_project
from harness.discovery import Catalogue, Found, Unlisted, is_path
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
        unlisted: Modules that were chosen too, and cannot be imported.
    """

    campaigns: tuple[Found, ...]
    import_path: tuple[Path, ...]
    unlisted: tuple[Unlisted, ...] = ()


def select(arguments: Sequence[str], folder: Path) -> Selection:
    """
    Return the campaigns that the arguments name; without arguments, all that are configured.

    Args:
        arguments: Names, folders of names, parts of class names, or paths and modules outside of
            the configuration, those with ``:Class`` or without.
        folder: The current folder: paths are relative to it, the project is sought from it.
    Raises: ConfigurationError: nothing is configured, an argument names nothing, or none of what
        is named can be imported. ZygoteDied: an import ended the process.
    """
    project = find_project(folder)
    if project is None and not arguments:
        raise ConfigurationError(_nothing_configured(folder))
    import_path = (project.folder, folder) if project else (folder,)
    with ZygoteClient(import_path) as zygote:
        chooser = _Chooser(zygote, project, folder)
        chosen = chooser.configured
        if arguments:
            parts = [chooser.choose(text) for text in arguments]
            chosen = Catalogue(
                tuple(one for part in parts for one in part.campaigns),
                tuple(dict.fromkeys(one for part in parts for one in part.unlisted)),
            )
    if not chosen.campaigns:
        raise ConfigurationError(chosen.reasons)
    unique: dict[tuple[str, str], Found] = {}
    for one in chosen.campaigns:
        unique.setdefault((one.path, one.class_name), one)
    return Selection(tuple(unique.values()), import_path, chosen.unlisted)


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
        self.configured = (
            zygote.catalogue(project.targets, project.folder) if project else Catalogue()
        )

    def choose(self, text: str) -> Catalogue:
        """Return what one argument names. Raises: ConfigurationError: nothing."""
        campaigns = self._by_name(text) or self._by_path(text)
        unlisted = self._unlisted(text)
        if campaigns or unlisted:
            return Catalogue(tuple(campaigns), unlisted)
        return self._outside(text)

    def _by_name(self, text: str) -> list[Found]:
        prefix = text.rstrip("/")
        for matches in (
            lambda one: one.name == text,
            lambda one: one.name.startswith((f"{prefix}/", f"{prefix}:")),
            lambda one: one.class_name == text,
            lambda one: text.isidentifier() and text in one.class_name,
        ):
            chosen = [one for one in self.configured.campaigns if matches(one)]
            if chosen and prefix:
                return chosen
        return []

    def _by_path(self, text: str) -> list[Found]:
        """Return the configured campaigns in a file or below a folder: they keep their names."""
        place, _, class_name = text.partition(":")
        return [
            one
            for one in self.configured.campaigns
            if self._is_below(one.path, place) and class_name in ("", one.class_name)
        ]

    def _is_below(self, path: str, place: str) -> bool:
        above = os.path.realpath(self._folder / place)
        return Path(os.path.realpath(path)).is_relative_to(above)

    def _unlisted(self, text: str) -> tuple[Unlisted, ...]:
        """Return what is configured, named by *text*, and cannot be imported."""
        place = text.partition(":")[0].rstrip("/")
        return tuple(
            one
            for one in self.configured.unlisted
            if one.name == place
            or one.name.startswith(f"{place}/")
            or (one.path and self._is_below(one.path, place))
        )

    def _outside(self, text: str) -> Catalogue:
        """Return campaigns that are not configured, named so that the name finds them again."""
        place, _, class_name = text.partition(":")
        path = self._folder / place
        if path.is_dir() or place.endswith(".py"):
            target = f"./{place}" if not is_path(place) else place
            found = self._zygote.catalogue(
                [f"{target}:{class_name}" if class_name else target], self._folder
            )
            named = (replace(one, name=self._path_name(one, place)) for one in found.campaigns)
            return Catalogue(tuple(named), found.unlisted)
        if (class_name or "." in place) and _is_module(place):
            found = self._zygote.catalogue([text], self._folder)
            if not found.campaigns:
                raise ConfigurationError(f"{self._unknown(text)}\n{found.reasons}")
            named = (replace(one, name=f"{one.module}:{one.class_name}") for one in found.campaigns)
            return Catalogue(tuple(named), found.unlisted)
        raise ConfigurationError(self._unknown(text))

    def _path_name(self, one: Found, place: str) -> str:
        given = self._folder / place
        if given.is_file():
            return f"{place}:{one.class_name}"
        inside = Path(one.path).relative_to(os.path.realpath(given))
        return f"{Path(place, inside).as_posix()}:{one.class_name}"

    def _unknown(self, text: str) -> str:
        if not self.configured.campaigns:
            return (
                f"{text!r} is no campaign: no campaigns are configured at or above {self._folder}, "
                "and it is neither a file, a folder nor module:Class."
            )
        names = sorted(one.name for one in self.configured.campaigns)
        closest = difflib.get_close_matches(text, names, n=3, cutoff=0.3)
        ordered = [*closest, *(name for name in names if name not in closest)]
        listed = "\n".join(f"  {name}" for name in ordered)
        hint = f" Did you mean {closest[0]!r}?" if closest else ""
        missing = ", ".join(one.name for one in self.configured.unlisted)
        if missing:
            hint += f" Of {missing} nothing can be listed; crashconform list says why."
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
