"""The generated parts of `docs/plugins/slots`: a slot's hooks, and what its suite checks. The rest of these pages is written by hand."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from asyncrl.plugins import SLOTS
from asyncrl.testing import SUITES
from asyncrl.testing.base import BaseSuite

from generator.hooks import hooks_of
from generator.markdown import prose, signature

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, slot: str) -> str:
    """Return a page with its generated blocks written again.

    Args:
        slot: a slot's key, or ``index`` for the page about all of them.
    """

    def block(found: re.Match[str]) -> str:
        lines = {"hooks": _hooks, "rules": _rules, "slots": _slots}[found[2]](slot)
        return f"{found[1]}{chr(10).join(lines).strip()}\n{found[3]}"

    return BLOCK.sub(block, text)


def _slots(slot: str) -> Iterator[str]:
    yield from ("| slot | entry-point group | active | what it decides |", "|---|---|---|---|")
    for one in SLOTS.values():
        active = "several" if one.many else "one"
        yield f"| [{one.key}]({one.key}.md) | `{one.group}` | {active} | {one.help} |"


def _hooks(slot: str) -> Iterator[str]:
    yield from ("```python", *(signature(hook) for hook in hooks_of(slot)), "```")


def _rules(slot: str) -> Iterator[str]:
    if slot != "index" and slot not in SUITES:
        return
    suite = BaseSuite if slot == "index" else SUITES[slot]
    inherited = [] if slot == "index" else list(_tests(BaseSuite))
    yield from prose(suite.__doc__)
    yield from ("", "*Rules:*", "")
    for name in _tests(suite):
        if name not in inherited or getattr(suite, name) is not getattr(BaseSuite, name):
            yield f"- {' '.join((inspect.getdoc(getattr(suite, name)) or '').split())} (`{name}`)"


def _tests(suite: type) -> Iterator[str]:
    """The rules of a suite, in the order in which they are written."""
    seen = set()
    for kind in reversed(suite.__mro__):
        for name in vars(kind):
            if name.startswith("test_") and name not in seen:
                seen.add(name)
                yield name
