"""
Finding campaigns: in the project's configuration, or by a path or ``module:Class``.

The configuration is read anywhere; modules are imported only in a zygote.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.campaign import Campaign, check_class
from harness.errors import ConfigurationError

TABLE = "tool.crashconform"
_KEYS = {"campaigns"}


@dataclass(frozen=True)
class Project:
    """
    Where campaigns are configured.

    Attributes:
        folder: The folder of pyproject.toml, which is on the import path first.
        targets: Modules or paths, as written there.
    """

    folder: Path
    targets: tuple[str, ...]


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


def find_project(start: Path) -> Project | None:
    """
    Return the nearest pyproject.toml at or above *start* that has our table, or None.

    Raises: ConfigurationError: it is no TOML, or the table is wrong.
    """
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _table(file)
            if table is not None:
                return Project(folder, _targets(file, table))
    return None


def _table(file: Path) -> dict[str, Any] | None:
    import tomllib  # in the front end; a zygote reads no configuration

    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    table = data.get("tool", {}).get("crashconform")
    if table is not None and not isinstance(table, dict):
        raise ConfigurationError(f"[{TABLE}] in {file} must be a table.")
    return table


def _targets(file: Path, table: dict[str, Any]) -> tuple[str, ...]:
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise ConfigurationError(
            f"[{TABLE}] in {file} has the unknown keys {unknown}; known are {sorted(_KEYS)}."
        )
    targets = table.get("campaigns")
    if (
        not isinstance(targets, list)
        or not targets
        or not all(isinstance(x, str) and x for x in targets)
    ):
        raise ConfigurationError(
            f"[{TABLE}] campaigns in {file} must be a list of modules or file paths, such as "
            f'campaigns = ["campaigns"]; it is {targets!r}.'
        )
    return tuple(targets)


def is_path(target: str) -> bool:
    """Say whether a target is written as a path rather than as a module."""
    return target.endswith(".py") or "/" in target


def find_campaigns(targets: Sequence[str], folder: Path) -> list[Found]:
    """
    Import what the targets name and return the campaigns in it, sorted by name.

    Args:
        targets: Modules, packages, paths of files or folders, each with ``:Class`` or without.
        folder: Paths are relative to it.
    Raises: ConfigurationError: a target does not exist, cannot be imported, or holds none.
    """
    found: dict[tuple[str, str], Found] = {}
    for target in targets:
        place, _, class_name = target.partition(":")
        some = [
            campaign
            for base, module in _modules(place, folder)
            for campaign in _in_module(base, module)
            if not class_name or campaign.class_name == class_name
        ]
        if not some:
            raise ConfigurationError(
                f"{target!r} holds no campaign: a campaign is a subclass of harness.Campaign with "
                "execute and without a leading underscore, defined in that module."
            )
        for campaign in some:
            found.setdefault((campaign.path, campaign.class_name), campaign)
    return sorted(found.values(), key=lambda campaign: campaign.name)


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


def _modules(place: str, folder: Path) -> Iterator[tuple[str, ModuleType]]:
    if not is_path(place):
        module = _import(place)
        if _is_hidden(place, module, folder):
            place = f"./{place.replace('.', '/')}"
        else:
            yield from _in_package(module)
            return
    path = (folder / place).resolve()
    if path.is_dir():
        for file in sorted(path.rglob("*.py")):
            if not file.name.startswith("_"):
                base = file.relative_to(path).with_suffix("").as_posix()
                yield base, _import_file(file)
    elif path.is_file():
        yield path.stem, _import_file(path)
    else:
        raise ConfigurationError(f"campaign path {place!r} does not exist: no {path}.")


def _in_package(module: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    paths = getattr(module, "__path__", None)
    if paths is None:
        yield module.__name__.rpartition(".")[2], module
        return
    prefix = module.__name__ + "."
    yield module.__name__, module
    import pkgutil  # in the process that lists, not in each that forks

    for info in pkgutil.walk_packages(paths, prefix, onerror=_raise_import):
        if not info.name.rpartition(".")[2].startswith("_"):
            yield info.name.removeprefix(prefix).replace(".", "/"), _import(info.name)


def _is_hidden(place: str, module: ModuleType, folder: Path) -> bool:
    """
    Say whether the project's own folder of that name lost against a module from elsewhere.

    A folder without ``__init__.py`` does, against any installed package; it is read as a path.
    """
    if not (folder / place.replace(".", "/")).is_dir():
        return False
    places = [*getattr(module, "__path__", ()), module.__file__ or ""]
    return not any(Path(x).resolve().is_relative_to(folder.resolve()) for x in places if x)


def _raise_import(name: str) -> None:
    raise ConfigurationError(f"{name!r} cannot be imported:\n{traceback.format_exc()}")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"no module {name!r} is to be found; the import path starts with {sys.path[0]!r}."
            ) from None
        raise ConfigurationError(f"{name!r} cannot be imported: {error}") from None
    except Exception:
        raise ConfigurationError(
            f"{name!r} cannot be imported:\n{traceback.format_exc()}"
        ) from None


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
    except Exception:
        del sys.modules[name]
        raise ConfigurationError(f"{path} cannot be imported:\n{traceback.format_exc()}") from None
    return module


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
