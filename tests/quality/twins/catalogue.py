"""Every twin that the campaigns must catch, by name."""

from __future__ import annotations

from . import opening_twins, writer_twins

TWINS = {twin.name: twin for twin in (*writer_twins.TWINS, *opening_twins.TWINS)}
