"""Every twin by name: those that the campaigns must catch, and those that no crash shows."""

from __future__ import annotations

from . import (
    metabolism_opening_twins,
    metabolism_twins,
    metabolism_uncaught,
    opening_twins,
    uncaught,
    writer_twins,
)

RUN_STORE = (*writer_twins.TWINS, *opening_twins.TWINS)
METABOLISM = (*metabolism_twins.TWINS, *metabolism_opening_twins.TWINS)

TWINS = {twin.name: twin for twin in (*RUN_STORE, *METABOLISM)}
UNCAUGHT = {**uncaught.UNCAUGHT, **metabolism_uncaught.UNCAUGHT}
