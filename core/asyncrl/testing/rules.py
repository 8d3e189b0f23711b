"""How a rule of a suite says that it was broken: what was promised, what happened, how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest


def broken(*, promised: str, happened: str, fix: str) -> NoReturn:
    """Fail the running test; the traceback would only show the suite.

    Args:
        promised: what the contract says, as a sentence.
        happened: what the plugin did instead.
        fix: what its author should change.
    """
    pytest.fail(f"\n  promised: {promised}\n  happened: {happened}\n  to fix:   {fix}", pytrace=False)


def expect(kept: object, *, promised: str, happened: str | Callable[[], str], fix: str) -> None:
    """Fail the running test unless `kept` is true. `happened` is only asked for then."""
    if not kept:
        broken(promised=promised, happened=happened if isinstance(happened, str) else happened(), fix=fix)
