"""How a suite reaches its plugin, and what its author may declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from asyncrl.authoring import Plugin, RunFacts
from asyncrl.host import Active, Host
from asyncrl.testing.groups import small_run
from asyncrl.testing.ready import NotReady, Ready, made, ready


class Reach:
    """What the rules of every slot build on.

    Attributes:
        plugin: the name under which the plugin is installed, or ``distribution:name``.
        options: options to build it with, as in the plugin's table of a run file; needed where some have no default.
        imports: heavy packages that importing the plugin's module loads, such as ``("torch",)``; every process that builds it
            then does so too.
        max_import_ratio: how many times as long as an empty module the import may take (a few hundred are some tens of milliseconds).
        rare_metrics: declared metrics that the suite's exercises can't provoke, each with the reason.
        variants: further options under which the exercises for metrics are done, for metrics that only some options make.
        examples: how many random cases each property is tried with.
    """

    slot: ClassVar[str] = ""
    plugin: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    imports: ClassVar[tuple[str, ...]] = ()
    max_import_ratio: ClassVar[float] = 2000.0
    rare_metrics: ClassVar[Mapping[str, str]] = {}
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    examples: ClassVar[int] = 40

    # For the rules ----------------------------------------------------------------------------------------------------------

    @classmethod
    def facts(cls, **changes: Any) -> RunFacts:
        """Return the facts of the run that the plugin is built for; override it for a plugin that wants others."""
        return small_run(**changes)

    @classmethod
    def ready(cls) -> Ready:
        """Return the plugin's class with where it comes from; skips the test when it does not load."""
        try:
            return ready(cls.slot, cls.plugin)
        except NotReady as error:
            pytest.skip(f"{error.rule} fails: {error}")

    @classmethod
    def make(cls, options: Mapping[str, Any] | None = None, run: RunFacts | None = None) -> Active:
        """Build the plugin; skips the test when that is not possible.

        Args:
            options: instead of the suite's.
            run: instead of `facts()`.
        """
        one = cls.ready()
        try:
            return one.active(made(one, cls.options if options is None else options, run or cls.facts()))
        except NotReady as error:
            pytest.skip(f"{error.rule} fails: {error}")

    @classmethod
    def host(cls, active: Active | None = None) -> Host:
        """Return a host with the plugin alone."""
        return Host([active or cls.make()])

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Use the plugin in every way that the suite knows, so that it emits its metrics; return the objects that were used."""
        return [cls.make(options).plugin]

    @classmethod
    def asked_with(cls) -> dict[str, Any]:
        """Return what a question to the plugin needs besides (see `asyncrl.testing.answers`), as JSON data."""
        return {}
