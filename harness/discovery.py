"""
Finding campaigns by module, by path or by ``module:Class``.

Modules are imported only in a zygote. One that cannot be imported hides no other.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from harness.campaign import Campaign, check_class
from harness.errors import ConfigurationError


@dataclass(frozen=True)
class Found:
    """
    One campaign.

    Attributes:
        name: Such as ``run_store/transitions``; with ``:Class`` where a module has several.
        module: A dotted name, or the absolute path of a file.
        class_name: The class in it.
        path: The module's file.
    """

    name: str
    module: str
    class_name: str
    path: str


@dataclass(frozen=True)
class Unlisted:
    """
    A module, or a target, of which no campaigns can be listed.

    Attributes:
        name: As a campaign in it would be named.
        path: The module's file, or nothing where there is none.
        message: Why, in plain words.
    """

    name: str
    path: str
    message: str


@dataclass(frozen=True)
class Catalogue:
    """
    What targets name.

    Attributes:
        campaigns: Sorted by name, each once.
        unlisted: What else they name, and why it is not among the campaigns.
    """

    campaigns: tuple[Found, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()

    @property
    def reasons(self) -> str:
        """Why not everything is listed, a paragraph for each."""
        return "\n".join(one.message for one in self.unlisted)


def is_path(target: str) -> bool:
    """Say whether a target is written as a path rather than as a module."""
    return target.endswith(".py") or "/" in target or target in (".", "..")


def find_campaigns(targets: Sequence[str], folder: Path) -> Catalogue:
    """
    Import what the targets name and return the campaigns in it; one that fails hides no other.

    Args:
        targets: Modules, packages, paths of files or folders, each with ``:Class`` or without.
        folder: Paths are relative to it.
    """
    found: dict[tuple[str, str], Found] = {}
    unlisted: dict[str, Unlisted] = {}
    for target in targets:
        failed: list[Unlisted] = []
        try:
            for campaign in _in_target(target, folder, failed):
                found.setdefault((campaign.path, campaign.class_name), campaign)
        except ConfigurationError as error:
            failed.append(Unlisted(target, _origin(target), str(error)))
        for one in failed:
            unlisted.setdefault(one.path or one.name, one)
    campaigns = sorted(found.values(), key=lambda campaign: campaign.name)
    return Catalogue(tuple(campaigns), tuple(unlisted.values()))


def _in_target(target: str, folder: Path, failed: list[Unlisted]) -> Iterator[Found]:
    """Yield a target's campaigns. Raises: ConfigurationError: there is none to be looked at."""
    place, _, class_name = target.partition(":")
    is_empty = True
    for base, module in _modules(place, folder, failed):
        for campaign in _in_module(base, module):
            if class_name in ("", campaign.class_name):
                is_empty = False
                yield campaign
    if is_empty and not failed:
        raise ConfigurationError(
            f"{target!r} holds no campaign: a campaign is a subclass of harness.Campaign with "
            "execute and without a leading underscore, defined in that module."
        )


def _origin(target: str) -> str:
    """Return the file of a module that cannot be imported, or nothing."""
    import importlib.util

    place = target.partition(":")[0]
    if is_path(place):
        return ""
    try:
        spec = importlib.util.find_spec(place)
    except Exception:  # whatever a package above it does
        return ""
    return (spec.origin or "") if spec is not None else ""


def load(found: Found) -> Campaign:
    """
    Return an instance of a campaign's class.

    Raises: ConfigurationError: it cannot be imported or made, or lacks ``observe``.
    """
    module = _import_file(Path(found.module)) if is_path(found.module) else _import(found.module)
    kind = getattr(module, found.class_name)
    try:
        campaign: Campaign = kind()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{found.class_name}() cannot be made: {error!r}. A campaign is made without arguments "
            "and keeps nothing in its attributes; leave __init__ out."
        ) from None
    check_class(campaign)
    return campaign


_Modules = Iterator[tuple[str, ModuleType]]


def _modules(place: str, folder: Path, failed: list[Unlisted]) -> _Modules:
    if not is_path(place):
        module = _import(place)
        if _is_hidden(place, module, folder):
            place = f"./{place.replace('.', '/')}"
        else:
            yield from _in_package(module, failed)
            return
    path = (folder / place).resolve()
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            if not file.name.startswith("_"):
                base = file.relative_to(path).with_suffix("").as_posix()
                yield from _tried(base, file, partial(_import_file, file), failed)
    elif path.is_file():
        yield from _tried(path.stem, path, partial(_import_file, path), failed)
    else:
        raise ConfigurationError(f"campaign path {place!r} does not exist: no {path}.")


def _tried(
    base: str, path: Path, imported: Callable[[], ModuleType], failed: list[Unlisted]
) -> _Modules:
    try:
        module = imported()
    except ConfigurationError as error:
        failed.append(Unlisted(base, str(path), str(error)))
    else:
        yield base, module


def _in_package(module: ModuleType, failed: list[Unlisted]) -> _Modules:
    paths = getattr(module, "__path__", None)
    if paths is None:
        yield module.__name__.rpartition(".")[2], module
        return
    prefix = module.__name__ + "."
    yield module.__name__, module
    import pkgutil  # in the process that lists, not in each that forks

    # A package below that cannot be imported fails here when it is tried, before it is searched.
    for info in pkgutil.walk_packages(paths, prefix, onerror=lambda name: None):
        last = info.name.rpartition(".")[2]
        if info.ispkg or not last.startswith("_"):
            base = info.name.removeprefix(prefix).replace(".", "/")
            folder = Path(str(getattr(info.module_finder, "path", "")))
            file = folder / last / "__init__.py" if info.ispkg else folder / f"{last}.py"
            tried = _tried(base, file, partial(_import, info.name), failed)
            yield from (one for one in tried if not last.startswith("_"))


def _is_hidden(place: str, module: ModuleType, folder: Path) -> bool:
    """
    Say whether the project's own folder of that name lost against a module from elsewhere.

    A folder without ``__init__.py`` does, against any installed package, also one that is installed
    below the project's folder; it is read as a path.
    """
    home = (folder / place.replace(".", "/")).resolve()
    places = [*getattr(module, "__path__", ()), module.__file__ or ""]
    if any(Path(x).resolve().is_relative_to(home) for x in places if x):
        return False
    return home.is_dir() and any(home.rglob("*.py"))


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"no module {name!r} is to be found; the import path starts with {sys.path[0]!r}."
            ) from None
        raise ConfigurationError(f"{name!r} cannot be imported: {error}") from None
    except Exception as error:
        raise ConfigurationError(f"{name!r} cannot be imported:\n{_traceback(error)}") from None


def _import_file(path: Path) -> ModuleType:
    name = f"_crashconform_{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return sys.modules[name]
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(f"{path} cannot be imported:\n{_traceback(error)}") from None
    return module


def _traceback(error: Exception) -> str:
    """Return a traceback without the frames of whoever imports, which are all alike."""
    ours = (__file__, importlib.__file__, "<frozen ")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(ours)
    ]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return "".join([*(head if frames else ()), *traceback.format_exception_only(error)]).rstrip()


def _in_module(base: str, module: ModuleType) -> list[Found]:
    kinds = [
        kind
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, Campaign)
        and kind.__module__ == module.__name__
        and not name.startswith("_")
        and kind.__name__ == name
        and kind.execute is not Campaign.execute
    ]
    file = str(module.__file__)
    where = file if module.__name__.startswith("_crashconform_") else module.__name__
    return [
        Found(base if len(kinds) == 1 else f"{base}:{kind.__name__}", where, kind.__name__, file)
        for kind in kinds
    ]
