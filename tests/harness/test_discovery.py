"""Which classes are campaigns, and how they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.client import ZygoteClient
from harness.errors import ConfigurationError

MODULE = """
import dataclasses
from harness import Campaign

class _Base(Campaign):
    def execute(self, root, run): pass
    def observe(self, root): return None

class Wal(_Base):
    mode = "wal"

class Delete(_Base):
    mode = "delete"

class Unfinished(Campaign):
    def observe(self, root): return None

class Helper:
    def execute(self, root, run): pass

Alias = Wal
"""


def listed(folder: Path, *targets: str) -> list[tuple[str, str]]:
    """Return (name, class) of every campaign that a fresh zygote lists, in its order."""
    with ZygoteClient((folder,)) as zygote:
        return [(found.name, found.class_name) for found in zygote.list(targets, folder)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a package with two modules and a private one, and a file beside it."""
    package = tmp_path / "stores"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "deep" / "__init__.py").touch()
    (package / "journals.py").write_text(MODULE)
    (package / "deep" / "one.py").write_text(
        "from stores.journals import Wal, _Base\nclass One(_Base): pass\n"
    )
    (package / "_private.py").write_text("raise RuntimeError('not to be imported')")
    (tmp_path / "alone.py").write_text(MODULE.replace("class Delete", "class _Delete"))
    return tmp_path


def test_subclasses_with_execute_and_no_underscore_are_campaigns(project: Path) -> None:
    """Bases, helpers, aliases, imported and unfinished classes are none; variants are each one."""
    assert listed(project, "stores") == [
        ("deep/one", "One"),
        ("journals:Delete", "Delete"),
        ("journals:Wal", "Wal"),
    ]


def test_a_module_with_one_campaign_gives_it_its_name(project: Path) -> None:
    """The class stands in the name only where a module has several."""
    assert listed(project, "alone.py") == [("alone", "Wal")]
    assert listed(project, "stores.deep.one") == [("one", "One")]


def test_a_class_can_be_chosen(project: Path) -> None:
    """A target may end in :Class, for modules, files and packages."""
    assert listed(project, "stores/journals.py:Wal") == [("journals:Wal", "Wal")]
    assert listed(project, "stores:One") == [("deep/one", "One")]


def test_a_folder_is_searched_for_modules(project: Path) -> None:
    """A path to a folder takes every file in it that has no leading underscore."""
    expected = [("journals:Delete", "Delete"), ("journals:Wal", "Wal")]
    assert listed(project, "./stores")[1:] == expected
    with ZygoteClient((project,)) as zygote:
        assert [x.name for x in zygote.list(["."], project / "stores")][1:] == [
            name for name, _ in expected
        ]


def test_a_folder_that_an_installed_package_hides_is_read_as_a_path(project: Path) -> None:
    """A project's campaigns folder without __init__.py wins over an installed package's."""
    folder = project / "campaigns"
    folder.mkdir()
    (folder / "mine.py").write_text(MODULE.replace("class Delete", "class _Delete"))
    assert listed(project, "campaigns") == [("mine", "Wal")]


@pytest.mark.parametrize("target", ["stores", "./stores"])
def test_a_module_that_cannot_be_imported_hides_no_other(project: Path, target: str) -> None:
    """What fails is listed with its file and why, be it a module or a package, and only once."""
    before = listed(project, target)
    (project / "stores" / "broken.py").write_text("class Broken(:\n")
    (project / "stores" / "lost").mkdir()
    (project / "stores" / "lost" / "__init__.py").write_text("import no_such_module\n")
    with ZygoteClient((project,)) as zygote:
        catalogue = zygote.catalogue([target, "alone.py", target], project)
    assert [(x.name, x.class_name) for x in catalogue.campaigns] == [("alone", "Wal"), *before]
    first, *rest = catalogue.unlisted
    assert (first.name, first.path) == ("broken", str(project / "stores" / "broken.py"))
    assert "SyntaxError" in first.message
    assert "harness/discovery.py" not in first.message
    assert "<frozen importlib" not in first.message
    # A folder that is read as a path has modules, no packages; a package's __init__ is skipped.
    assert [x.name for x in rest] == (["lost"] if target == "stores" else [])


def test_a_target_that_is_wrong_hides_no_other(project: Path) -> None:
    """A target that does not exist is told, and the campaigns of the others are listed."""
    with ZygoteClient((project,)) as zygote:
        catalogue = zygote.catalogue(["nowhere", "alone.py"], project)
    assert [x.name for x in catalogue.campaigns] == ["alone"]
    assert [(x.name, x.path) for x in catalogue.unlisted] == [("nowhere", "")]
    assert "no module 'nowhere' is to be found" in catalogue.reasons


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("stores:Nobody", "'stores:Nobody' holds no campaign"),
        ("nowhere", "no module 'nowhere' is to be found"),
        ("./nowhere", "campaign path './nowhere' does not exist"),
        ("stores._private", "cannot be imported"),
    ],
)
def test_a_target_that_is_none_is_refused(project: Path, target: str, message: str) -> None:
    """A target without campaigns names itself and says what was looked for."""
    with pytest.raises(ConfigurationError) as caught:
        listed(project, target)
    assert message in str(caught.value)
