"""Plugins by name: discovery reads metadata only, a name means one plugin, and what is broken is told where it is broken."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import indent
from typing import get_type_hints

import pytest
from asyncrl import waits
from asyncrl.authoring import RunFacts
from asyncrl.errors import AmbiguousPlugin, PluginLoadError, PluginMismatch, UnknownPlugin
from asyncrl.hookspecs import SLOT_HOOKS
from asyncrl.plugins import SLOTS, PluginSpec, build_host, discover, load
from asyncrl.run_options import RunOptions
from fake_distributions import BUFFER_HOOKS, install, install_toys

FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=3)
BUFFER = (
    """
from asyncrl import *
from pydantic import Field
class Good(Plugin):
    Options = BufferOptions
"""
    + BUFFER_HOOKS
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first on the import path; modules imported from it are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def offer(path: Path, source: str, name: str = "mine") -> None:
    """Install a buffer plugin called `name`, the class `Good` of a module with this source."""
    module = f"module_{name}"
    install(path, f"dist-{name}", {"asyncrl.buffers": {name: f"{module}:Good"}}, modules={module: source})


# Discovery ----------------------------------------------------------------------------------------------------------------


def test_every_slot_has_its_hooks_and_no_option_of_core_has_its_name() -> None:
    assert set(SLOTS) == set(SLOT_HOOKS)
    assert not set(SLOTS) & set(RunOptions.model_fields)


def test_every_slot_has_an_entry_point_group_of_its_own() -> None:
    groups = [slot.group for slot in SLOTS.values()]
    assert len(set(groups)) == len(groups)
    assert all(group.startswith("asyncrl.") for group in groups)


def test_discovery_imports_nothing_even_when_a_plugin_is_broken(path: Path) -> None:
    """Field reports 28 and 32."""
    offer(path, "raise RuntimeError('imported')", "broken")
    assert discover([str(path)]).plugins[0].name == "broken"
    assert "module_broken" not in sys.modules


def test_metadata_that_cannot_be_read_hides_no_other_plugin(path: Path) -> None:
    """Field report 28."""
    offer(path, BUFFER)
    place = install(path, "mangled", {"asyncrl.buffers": {}})
    (place / "entry_points.txt").write_bytes(b"[asyncrl.buffers]\n\xff\xfe")
    catalog = discover([str(path)])
    assert [found.name for found in catalog.plugins] == ["mine"]
    assert "can't be read" in catalog.strays[0]


def test_an_entry_point_in_a_misspelled_group_is_mentioned(path: Path) -> None:
    """Field report 30."""
    install(path, "typo", {"asyncrl.buffer": {"mine": "m:C"}})
    with pytest.raises(
        UnknownPlugin, match=r"unknown entry-point group 'asyncrl.buffer', did its author mean 'asyncrl.buffers'\?"
    ):
        discover([str(path)]).pick("buffer", "mine", "--buffer")


def test_an_entry_point_in_a_misspelled_group_of_another_slot_is_not_mentioned(path: Path) -> None:
    install(path, "typo", {"asyncrl.bufers": {"mine": "m:C"}})
    with pytest.raises(UnknownPlugin) as raised:
        discover([str(path)]).pick("filters", "yours", "--filters")
    assert "typo" not in str(raised.value)


def test_an_editable_install_is_listed_once(path: Path) -> None:
    """Field report 39: its own folder has an egg-info, site-packages a dist-info, and both are on the path."""
    install(path / "a", "my-buffer", {"asyncrl.buffers": {"mine": "m:C"}}, kind="egg-info")
    install(path / "b", "My_Buffer", {"asyncrl.buffers": {"mine": "m:C"}})
    catalog = discover([str(path / "a"), str(path / "b"), str(path / "a")])
    assert [(found.name, found.distribution) for found in catalog.plugins] == [("mine", "my-buffer")]
    assert catalog.pick("buffer", "My.Buffer:mine", "--buffer").distribution == "my-buffer"


# Selection ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["", ":", ":mine", "mine:", "dist-mine:"])
def test_a_selection_with_nothing_before_or_behind_its_colon_is_refused(wanted: str, path: Path) -> None:
    offer(path, BUFFER)
    with pytest.raises(UnknownPlugin, match=f"^--buffer: got '{wanted}', wants NAME or DISTRIBUTION:NAME$"):
        discover([str(path)]).pick("buffer", wanted, "--buffer")


@pytest.mark.parametrize("wanted", ["NEWEST-FIRST", "Newest_First", "newest.first", "newestfirst"])
def test_a_name_in_another_spelling_is_told_the_right_one(wanted: str, path: Path) -> None:
    install(path, "theirs", {"asyncrl.buffers": {"newest-first": "m:C", "fifo": "m:C"}})
    with pytest.raises(UnknownPlugin, match=r"did you mean 'newest-first'\?"):
        discover([str(path)]).pick("buffer", wanted, "--buffer")


def test_two_distributions_with_one_name_are_both_listed_and_one_can_be_picked(path: Path) -> None:
    """Field report 31."""
    for order in (["one", "two"], ["two", "one"]):
        for folder in order:
            install(path / folder, f"dist-{folder}", {"asyncrl.buffers": {"mine": f"{folder}:C"}})
        catalog = discover([str(path / folder) for folder in order])
        with pytest.raises(AmbiguousPlugin, match=r"dist-one 1\.0 and dist-two 1\.0 \(write dist-one:mine or dist-two:mine\)"):
            catalog.pick("buffer", "mine", "--buffer")
        assert catalog.pick("buffer", "dist-two:mine", "--buffer").target == "two:C"


def test_an_unknown_name_gets_the_nearest_the_installed_and_the_slots_that_have_it(path: Path) -> None:
    """Field report 30."""
    install_toys(path)
    catalog = discover([str(path)])
    with pytest.raises(UnknownPlugin, match=r"did you mean 'fifo'\? \(installed for buffer: fifo, priority\)"):
        catalog.pick("buffer", "fif", "--buffer")
    with pytest.raises(UnknownPlugin, match="there is one for loggers"):
        catalog.pick("buffer", "jsonl", "--buffer")


# Loading ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["import no_such_module", "def (", "import sys; sys.exit(0)", "x = 1"], ids=["import", "syntax", "exit", "missing"]
)
def test_a_broken_plugin_that_is_selected_is_named_with_its_cause(path: Path, source: str) -> None:
    """Field report 29."""
    offer(path, source, "broken")
    found = discover([str(path)]).pick("buffer", "broken", "--buffer")
    with pytest.raises(
        PluginLoadError, match=r"buffer plugin 'broken' \(dist-broken 1.0, module_broken:Good\) can't be loaded"
    ) as caught:
        load(found)
    assert caught.value.__cause__ is not None
    assert caught.value.exit_code == 3
    assert type(caught.value.__cause__).__name__ in pickle.loads(pickle.dumps(caught.value)).detail


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("class Good: pass", "is no class derived from asyncrl.Plugin"),
        ("Good = 3", "is no class derived from asyncrl.Plugin"),
        (
            BUFFER.replace("    @hookimpl\n    def buffer_size", "    def buffer_size"),
            r"buffer_size at \S+module_mine.py:\d+: is named like a hook, but is not marked @hookimpl",
        ),
        (
            BUFFER.replace("buffer_take", "buffer_tke"),
            r"buffer_tke at \S+module_mine.py:\d+: there is no hook of this name; did its author mean 'buffer_take'\?",
        ),
        (BUFFER.replace("Options = BufferOptions", "Options = dict"), "do not derive from asyncrl.PluginOptions"),
        (BUFFER + "    class Options(PluginOptions):\n        alpha: int = 1\n", "the option 'alpha' has no description"),
        (
            BUFFER + "    class Options(PluginOptions):\n        name: str = Field('', description='x')\n",
            "the option 'name' can't be",
        ),
        (BUFFER + "    class Options(PluginOptions):\n        a: int | None = Field(1, description='x')\n", "could not say None"),
        (BUFFER + "    class Options(PluginOptions, extra='ignore'): pass\n", "accept unknown keys"),
    ],
)
def test_a_class_that_cannot_serve_says_why(path: Path, source: str, fault: str) -> None:
    """Field report 33."""
    offer(path, source)
    with pytest.raises(PluginLoadError, match=fault):
        load(discover([str(path)]).pick("buffer", "mine", "--buffer"))


def test_one_class_serves_under_two_names(path: Path) -> None:
    install_toys(path)
    catalog = discover([str(path)])
    kinds = [load(catalog.pick("loggers", name, "--loggers")) for name in ("console", "jsonl")]
    assert [(kind.slot, kind.name) for kind in kinds] == [("loggers", "console"), ("loggers", "jsonl")]
    plugin = kinds[0](kinds[0].Options(), FACTS)
    plugin.metrics.lines.add(1)
    assert plugin.metrics.drain() == {"loggers/console/lines": {"": 1}}


UNTIL_TOLD = "import sys, time\nwhile {word!r} not in sys.stderr.getvalue(): time.sleep(0.01)\n"


@pytest.mark.parametrize("doing", ["importing", "making"])
def test_code_of_a_plugin_that_does_not_end_is_named(doing: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = UNTIL_TOLD.format(word=doing)
    inside = "    def __init__(self, options, run):\n        super().__init__(options, run)\n" + indent(wait, "        ")
    name = f"{doing}_slow"
    offer(path, wait + BUFFER if doing == "importing" else BUFFER + inside, name)
    monkeypatch.setattr(waits, "SECONDS", 0.1)
    monkeypatch.setattr(sys, "stderr", told := io.StringIO())
    build_host([PluginSpec("buffer", name, f"dist-{name}", "1.0", "{}")], FACTS)
    assert re.search(rf"asyncrl: {doing} buffer plugin '{name}' .*has not ended after 0\.1 s", told.getvalue())


# Between processes ----------------------------------------------------------------------------------------------------------


def spec(version: str = "1.0", options: str = "{}", distribution: str = "dist-mine") -> PluginSpec:
    return PluginSpec("buffer", "mine", distribution, version, options)


def test_nothing_of_a_plugin_crosses_a_process_boundary_but_names_version_and_json() -> None:
    assert get_type_hints(PluginSpec) == {"slot": str, "name": str, "distribution": str, "version": str, "options": str}


def test_another_process_builds_its_own_plugin_from_the_spec(path: Path) -> None:
    """Field reports 35 and 36: an object with a lock never has to be pickled, because only names and JSON cross."""
    offer(
        path,
        BUFFER + "    def __init__(self, options, run):\n        import threading\n        self.lock = threading.Lock()\n"
        "        super().__init__(options, run)\n",
    )
    sent = pickle.dumps((spec(options='{"capacity_factor": 3.0}'), FACTS))
    host = build_host([spec(options='{"capacity_factor": 3.0}')], FACTS)
    assert isinstance(host.plugin("buffer").lock, type(threading.Lock()))
    code = (
        "import pickle, sys; spec, facts = pickle.loads(sys.stdin.buffer.read());"
        "from asyncrl.plugins import build_host;"
        "plugin = build_host([spec], facts, slots={'buffer'}).plugin('buffer');"
        "print(plugin.slot, plugin.name, plugin.options.capacity_factor, plugin.run.batch_size)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=sent, capture_output=True, timeout=120, env={"PYTHONPATH": str(path)}
    )
    assert done.stdout.decode().split() == ["buffer", "mine", "3.0", "2"], done.stderr.decode()


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (spec(version="2.0"), r"wanted buffer plugin 'mine' of dist-mine 2\.0, found version 1\.0"),
        (spec(distribution="other"), r"wanted buffer plugin 'mine' of other 1\.0, found none"),
    ],
)
def test_a_process_with_other_versions_refuses_to_build(path: Path, wanted: PluginSpec, text: str) -> None:
    """Field report 35."""
    offer(path, BUFFER)
    with pytest.raises(PluginMismatch, match=r"node \S+: " + text):
        build_host([wanted], FACTS)


def test_only_the_slots_asked_for_are_built(path: Path) -> None:
    offer(path, "raise RuntimeError('imported')")
    assert build_host([spec()], FACTS, slots={"trainer"}).actives == ()


def test_a_constructor_that_leaves_its_base_out_is_the_plugins_fault(path: Path) -> None:
    offer(path, BUFFER + "    def __init__(self, options, run): pass\n")
    with pytest.raises(PluginLoadError, match=r"can't be constructed: .*does not call super\(\).__init__\(options, run\)"):
        build_host([spec()], FACTS)


def test_a_constructor_that_raises_is_the_plugins_fault(path: Path) -> None:
    offer(path, BUFFER + "    def __init__(self, options, run): raise ValueError('boom')\n")
    with pytest.raises(PluginLoadError, match=r"\(dist-mine 1\.0\) can't be constructed: ValueError: boom") as caught:
        build_host([spec()], FACTS)
    assert "in __init__" in caught.value.detail


def test_a_spec_shows_no_options_because_they_may_hold_secrets() -> None:
    assert "hunter2" not in repr(spec(options='{"token": "hunter2"}'))
