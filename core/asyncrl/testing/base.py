"""The rules that hold for plugins of every slot, in one class."""

from __future__ import annotations

from asyncrl.testing.install_rules import InstallRules
from asyncrl.testing.option_rules import OptionRules
from asyncrl.testing.process_rules import ProcessRules


class BaseSuite(InstallRules, OptionRules, ProcessRules):
    """Base of the suites. Derive from the suite of your slot, in a module that pytest collects::

        from asyncrl.testing import BufferSuite

        class TestMine(BufferSuite):
            plugin = "mine"

    Each rule is one test, and its docstring says the rule. Rules that can't be tried, because an earlier one fails or the plugin
    promises nothing of the kind, are skipped with the reason.

    A subclass may set:

    Attributes:
        plugin: the name under which the plugin is installed, or ``distribution:name``.
        options: options to build it with, as in the plugin's table of a run file; needed where some have no default.
        imports: heavy packages that importing the plugin's module loads, such as ``("torch",)``; every process that builds it
            then does so too.
        max_import_ratio: how many times as long as an empty module the import may take.
        rare_metrics: declared metrics that the suite's exercises can't provoke, each with the reason.
        variants: further options under which the exercises for metrics are done, for metrics that only some options make.
        examples: how many random cases each property is tried with.
    """
