"""Rules on a plugin before it does anything: its entry point, its import, its hooks, its constructor."""

from __future__ import annotations

import json

import pytest

from asyncrl.errors import AsyncrlError
from asyncrl.fields import plain
from asyncrl.hook_checks import hook_doubts
from asyncrl.plugins import SLOTS
from asyncrl.testing.probing import HEAVY, Probed, probe, probe_again
from asyncrl.testing.reach import Reach
from asyncrl.testing.ready import STAGES, NotReady, made, ready
from asyncrl.testing.rules import broken, expect

ATTEMPTS = 3
"""Fresh processes of which the quickest import counts, so that a busy machine breaks no rule."""


class InstallRules(Reach):
    def test_it_is_installed_under_its_name(self) -> None:
        """An installed distribution offers the name in the slot's entry-point group, and no other one does."""
        self._reached("installed", f"the name {self.plugin!r} is an entry point in the group {SLOTS[self.slot].group!r}")

    def test_it_loads(self) -> None:
        """The entry point names a class derived from `Plugin`, with its options, metrics and the slot's hooks in order."""
        self._reached("loaded", f"what the entry point {self.plugin!r} names can be imported and is a plugin")

    def test_its_hooks_match_their_specifications(self) -> None:
        """Every marked method is a hook of its slot, with the arguments and the kind of function that its specification has."""
        self._reached("hooked", "hooks are implemented as asyncrl.hookspecs declares them")

    def test_its_options_build_it(self) -> None:
        """The default options, or those of the suite, are valid, and the constructor takes them."""
        self._reached("built", "a plugin is made of its options and the facts of a run, and of nothing else")

    def test_no_method_is_nearly_a_hook(self) -> None:
        """No public method without the mark is spelled nearly like a hook: it would never be called. Nor is its hook API an old one."""
        doubts = hook_doubts(self.slot, self.ready().kind)
        expect(
            not doubts,
            promised="a public method that is spelled like a hook is one",
            happened="; ".join(doubts),
            fix="spell the hook as in asyncrl.hookspecs and mark it @hookimpl, or begin a helper's name with an underscore",
        )

    def test_importing_it_imports_nothing_heavy(self) -> None:
        """No package that takes seconds to import comes with the module, unless the suite declares it in `imports`."""
        surprising = sorted(set(self._probed().imported) - set(self.imports))
        expect(
            not surprising,
            promised=f"importing the plugin's module imports none of {', '.join(HEAVY)}, except {list(self.imports) or 'none'}",
            happened=f"it imported {', '.join(surprising)}",
            fix="import it inside the method that needs it; if every user of the plugin pays for it anyway, declare it: "
            f"imports = {tuple(surprising)!r}",
        )

    def test_importing_it_is_quick(self) -> None:
        """The import takes no more than `max_import_ratio` times as long as that of an empty module."""
        if self.imports:
            pytest.skip(f"it declares that it imports {', '.join(self.imports)}, which takes as long as it takes")
        probed = self._probed()
        for _ in range(ATTEMPTS - 1):
            if _ratio(probed, probed.import_seconds) <= self.max_import_ratio:
                break
            probed = self._probed(again=True)
        self._quick(probed, probed.import_seconds, "importing the plugin's module", "import what is slow where it is needed")

    def test_its_constructor_is_cheap(self) -> None:
        """Building the plugin takes no longer than importing it may."""
        probed = self._probed()
        self._quick(probed, probed.build_seconds, "building the plugin", "do it in the hook that needs it, once")

    def test_its_constructor_touches_nothing(self) -> None:
        """The constructor opens no connection, writes no file, starts no process and no thread."""
        touched = self._probed().touched
        expect(
            not touched,
            promised="the constructor leaves the outside world alone: each process that needs the plugin makes its own",
            happened=f"it {'; '.join(touched)}",
            fix="do it in a hook that is called when the run starts, such as task_open, log_start or on_run_start",
        )

    def _reached(self, stage: str, promised: str) -> None:
        """Fail when exactly this stage can't be reached; skip when an earlier one can't."""
        try:
            one = ready(self.slot, self.plugin)
            if stage in ("hooked", "built"):
                made(one, self.options, self.facts())
        except NotReady as error:
            order = list(STAGES)
            if error.stage == stage:
                fix = getattr(error.cause, "remedy", "") or "change what the message names"
                fix += "; a suite gives options by its attribute `options`" if stage == "built" else ""
                broken(promised=promised, happened=str(error), fix=fix)
            if order.index(error.stage) < order.index(stage):
                pytest.skip(f"{error.rule} fails: {error}")

    def _probed(self, *, again: bool = False) -> Probed:
        one = self.ready()
        try:
            options = json.dumps(plain(one.options(self.options), secrets=True))
        except AsyncrlError as error:
            pytest.skip(f"test_its_options_build_it fails: {error}")
        probed = (probe_again if again else probe)(self.slot, one.found.target, options, self.facts())
        if probed.error:
            broken(
                promised="the plugin's module can be imported in a process of its own",
                happened=f"the import failed there:\n{probed.error}",
                fix="the module must not count on what another import, or the working directory, has set up",
            )
        if probed.build_error:
            pytest.skip(f"it can't be built: {probed.build_error}")
        return probed

    def _quick(self, probed: Probed, seconds: float, what: str, fix: str) -> None:
        ratio = _ratio(probed, seconds)
        expect(
            ratio <= self.max_import_ratio,
            promised=f"{what} takes at most {self.max_import_ratio:g} times as long as importing an empty module",
            happened=f"it took {seconds:.3f} s, an empty module {probed.empty_seconds * 1000:.2f} ms: {ratio:.0f} times as long",
            fix=f"{fix}; if it can't be helped, raise max_import_ratio in the suite",
        )


def _ratio(probed: Probed, seconds: float) -> float:
    return seconds / max(probed.empty_seconds, 1e-4)
