"""A project's configuration: the table ``[tool.crashconform]`` of its pyproject.toml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    import tomllib  # only where there is a file to read: every pytest run imports this module

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
