"""Everything that can be wrong with a plugin, and the line it is answered with: `golden/plugins.txt`.

UPDATE_GOLDEN=1 pytest tests/cli/test_plugin_errors.py      write the golden file again
"""

from __future__ import annotations

import os
import re
import socket
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from asyncrl.authoring import RunFacts
from asyncrl.errors import AsyncrlError
from asyncrl.options import RunConfig, resolve
from asyncrl.plugins import SLOTS, PluginSpec, build_host, discover
from fake_distributions import BUFFER_HOOKS, install, install_toys

GOLDEN = Path(__file__).parent / "golden" / "plugins.txt"
FACTS = RunFacts(batch_size=2, group_size=2, max_concurrent_samples=4, steps=3)
BUFFER = (
    """
from asyncrl import *
from pydantic import Field, SecretStr, field_validator
class Mine(Plugin):
    Options = BufferOptions
"""
    + BUFFER_HOOKS
)
TASK = """
from asyncrl import *
class Mine(Plugin):
    @hookimpl
    def task_open(self, model): pass
    @hookimpl
    def train_prompt(self, position): pass
    @hookimpl
    async def score_sample(self, prompt, sample): pass
    @hookimpl
    def eval_sets(self): return ()
"""
LOGGER = "from asyncrl import *\nclass Mine(Plugin):\n    @hookimpl\n    def log_metrics(self, record): pass\n"
FILTER = LOGGER.replace("log_metrics(self, record)", "judge_group(self, group)")
OBSERVER = LOGGER.replace("log_metrics(self, record)", "on_step(self, step)")
SECRET = "hunter2-hunter2"
OPTIONS = BUFFER + "    class Options(BufferOptions):\n        token: SecretStr = Field('', description='A key.')\n"
REFUSING = (
    OPTIONS
    + """
        @field_validator('token', mode='before')
        @classmethod
        def _check(cls, value):
            raise ValueError(f'no service takes {value}')
"""
)
CHECKED = (
    BUFFER
    + """
    class Options(BufferOptions):
        alpha: int = Field(1, description='x', validate_default=True)
        @field_validator('alpha', mode='before')
        @classmethod
        def _check(cls, value):
            WHAT
"""
)


def with_(hook: str, slot_source: str = BUFFER) -> str:
    """A plugin with one more method."""
    return slot_source + textwrap.indent(textwrap.dedent(hook).strip(), "    ") + "\n"


NO_CLASS = "an entry point that names no class"
TWO = "two plugins that answer one hook"


def counting(what: str) -> str:
    """A buffer whose constructor does something with its metrics."""
    return (
        BUFFER
        + "    class Metrics(MetricSet):\n        all = Counter('All', unit='x')\n"
        + "        by_kind = Counter('By kind', unit='x', label='kind')\n"
        + f"    def __init__(self, options, run):\n        super().__init__(options, run)\n        {what}\n"
    )


LOADING: dict[str, tuple[str, str]] = {
    NO_CLASS: ("buffer", BUFFER),
    "a module that is not there": ("buffer", ""),
    "a module that imports what is not there": ("buffer", "import no_such_module"),
    "a module that is no Python": ("buffer", "def ("),
    "a module that calls sys.exit()": ("buffer", "import sys; sys.exit(0)"),
    "a module that raises what is no Exception": ("buffer", "raise GeneratorExit"),
    "a module without the class": ("buffer", "x = 1"),
    "a class that is no plugin": ("buffer", "class Mine: pass"),
    "an older hook API": ("buffer", with_("hook_api = 0")),
    "a newer hook API": ("buffer", with_("hook_api = 7")),
    "a hook API that is no number": ("buffer", with_("hook_api = '1'")),
    "no hook at all": ("buffer", "from asyncrl import *\nclass Mine(Plugin): pass"),
    "a missing hook": ("buffer", BUFFER.replace("    @hookimpl\n    def buffer_size(self): return 0\n", "")),
    "a missing hook, and a name like it": ("buffer", BUFFER.replace("    @hookimpl\n    def buffer_size", "    def buffersize")),
    "a wrapper for an implementation": (
        "buffer",
        BUFFER.replace(
            "    @hookimpl\n    def buffer_size(self): return 0",
            "    @hookimpl(wrapper=True)\n    def buffer_size(self): return (yield)",
        ),
    ),
    "a filter that neither judges nor masks": ("filters", OBSERVER),
    "options of no kind": ("buffer", BUFFER.replace("BufferOptions", "dict")),
    "options that accept unknown keys": ("buffer", BUFFER + "    class Options(PluginOptions, extra='ignore'): pass\n"),
    "options that are not frozen": ("buffer", BUFFER + "    class Options(PluginOptions, frozen=False): pass\n"),
    "an option without help": ("buffer", BUFFER + "    class Options(PluginOptions):\n        alpha: int = 1\n"),
    "an option called name": (
        "buffer",
        BUFFER + "    class Options(PluginOptions):\n        name: str = Field('', description='x')\n",
    ),
    "an option that a file can't unset": (
        "buffer",
        BUFFER + "    class Options(PluginOptions):\n        a: int | None = Field(1, description='x')\n",
    ),
    "an option with a default of another type": (
        "buffer",
        BUFFER + "    class Options(BufferOptions):\n        layers: list[int] = Field('1', description='x')\n",
    ),
    "an option with a default beyond its bounds": (
        "buffer",
        BUFFER + "    class Options(BufferOptions):\n        layers: int = Field(0, ge=1, description='x')\n",
    ),
    "an option with a default that JSON can't say": (
        "buffer",
        BUFFER + "    class Options(BufferOptions):\n        layers: object = Field(object, description='x')\n",
    ),
    "a secret option with a default of another type": (
        "buffer",
        BUFFER + f"    class Options(BufferOptions):\n        token: SecretStr = Field([{SECRET!r}], description='x')\n",
    ),
    "a default that can't be made": (
        "buffer",
        BUFFER + "    class Options(BufferOptions):\n        a: int = Field(description='x', default_factory=lambda: [][0])\n",
    ),
    "a validator that raises what no validator should": ("buffer", CHECKED.replace("WHAT", "raise KeyError('b')")),
    "a validator that calls sys.exit()": ("buffer", CHECKED.replace("WHAT", "raise SystemExit(0)")),
    "options that are no longer valid when they are read again": (
        "buffer",
        CHECKED.replace("WHAT", "return 2 if value is None else int('x')").replace("int = Field(1", "int | None = Field(None"),
    ),
    "metrics of no kind": ("buffer", with_("Metrics = dict")),
    "a metric that is none": ("buffer", BUFFER + "    class Metrics(MetricSet):\n        x = 3\n"),
    "a metric that has only a type": ("buffer", BUFFER + "    class Metrics(MetricSet):\n        x: Counter\n"),
}
HOOKS: dict[str, tuple[str, str]] = {
    "an unknown hook": ("buffer", with_("@hookimpl\ndef on_stpe(self, step): pass")),
    "an unknown hook that is like none": ("buffer", with_("@hookimpl\ndef zzz(self): pass")),
    "a hook without the mark": ("buffer", with_("def on_step(self, step): pass")),
    "a hook overridden without the mark": (
        "buffer",
        BUFFER.replace("class Mine", "class Base") + "class Mine(Base):\n    def buffer_size(self): return 1\n",
    ),
    "specname": ("buffer", with_("@hookimpl(specname='on_step')\ndef step_was_done(self, step): pass")),
    "optionalhook": ("buffer", with_("@hookimpl(optionalhook=True)\ndef on_step(self, step): pass")),
    "tryfirst": ("buffer", with_("@hookimpl(tryfirst=True)\ndef on_step(self, step): pass")),
    "trylast": ("filters", FILTER.replace("@hookimpl", "@hookimpl(trylast=True)")),
    "hookwrapper": ("buffer", with_("@hookimpl(hookwrapper=True)\ndef submission_quota(self, load): yield")),
    "a wrong argument": ("buffer", with_("@hookimpl\ndef on_step(self, stpe): pass")),
    "an argument that is like none": ("buffer", with_("@hookimpl\ndef on_step(self, banana): pass")),
    "an argument with a default": ("buffer", with_("@hookimpl\ndef on_step(self, step=0): pass")),
    "an argument by keyword only": ("buffer", with_("@hookimpl\ndef on_step(self, *, step): pass")),
    "an argument by position only": ("buffer", with_("@hookimpl\ndef on_step(self, step, /): pass")),
    "*args": ("buffer", with_("@hookimpl\ndef on_step(self, *args): pass")),
    "**kwargs": ("buffer", with_("@hookimpl\ndef on_step(self, **kwargs): pass")),
    "no self": ("buffer", with_("@hookimpl\ndef on_run_end(): pass")),
    "async where sync is expected": ("buffer", with_("@hookimpl\nasync def on_step(self, step): pass")),
    "sync where async is expected": ("task", TASK.replace("async def", "def")),
    "an async generator": ("task", TASK.replace("(self, prompt, sample): pass", "(self, prompt, sample): yield")),
    "a generator that is no wrapper": ("buffer", with_("@hookimpl\ndef on_step(self, step): yield")),
    "a wrapper that does not yield": ("buffer", with_("@hookimpl(wrapper=True)\ndef submission_quota(self, load): return 1")),
    "a wrapper on an async hook": ("buffer", with_("@hookimpl(wrapper=True)\ndef score_sample(self, sample): return (yield)")),
    "an async wrapper": ("buffer", with_("@hookimpl(wrapper=True)\nasync def submission_quota(self, load): yield")),
    "a wrapper on a hook of many": ("buffer", with_("@hookimpl(wrapper=True)\ndef judge_group(self, group): return (yield)")),
    "a wrapper on an observer hook": ("buffer", with_("@hookimpl(wrapper=True)\ndef on_step(self, step): return (yield)")),
    "a wrapper where the plugin is not": (
        "buffer",
        with_("@hookimpl(wrapper=True)\ndef train_batch(self, batch): return (yield)"),
    ),
    "a static method": ("buffer", with_("@hookimpl\n@staticmethod\ndef on_step(step): pass")),
    "a static method, marked inside": ("buffer", with_("@staticmethod\n@hookimpl\ndef on_step(step): pass")),
    "a class method": ("buffer", with_("@classmethod\n@hookimpl\ndef on_step(cls, step): pass")),
    "a property": ("buffer", with_("@property\n@hookimpl\ndef on_step(self): pass")),
    "a cached property": ("buffer", with_("import functools\n@functools.cached_property\n@hookimpl\ndef on_step(self): pass")),
    "a hook of another slot": ("buffer", with_("@hookimpl\ndef submission_quota(self, load): return 1")),
    "an observer hook where the plugin is not": ("loggers", LOGGER + "    @hookimpl\n    def on_batch(self, batch): pass\n"),
}
CONSTRUCTING: dict[str, str] = {
    "a constructor that raises": with_("def __init__(self, options, run): raise ValueError('boom')"),
    "a constructor that calls sys.exit()": with_("def __init__(self, options, run): raise SystemExit(0)"),
    "a constructor that quotes a secret": with_(
        "def __init__(self, options, run): raise ValueError('key ' + options.token.get_secret_value() + ' is refused')", OPTIONS
    ),
    "options that this node refuses, quoting a secret": REFUSING,
    "a constructor that raises what is no Exception": with_("def __init__(self, options, run): raise GeneratorExit"),
    "a metric with a label too few": counting("self.metrics.by_kind.add(1)"),
    "a metric with a label too many": counting("self.metrics.all.add(1, 'a')"),
    "a metric that is not declared": counting("self.metrics.more = 3"),
    TWO: with_("@hookimpl\ndef score_group(self, group): return 1")
    + "class Observer(Plugin):\n    @hookimpl\n    def score_group(self, group): return 1\n",
    "a hook that the constructor sets": with_(
        "def __init__(self, options, run):\n    super().__init__(options, run)\n    self.buffer_size = lambda: 0"
    ),
    "another version than on the controller": "",
    "nothing of the kind on this node": "",
}
DOUBTS: dict[str, str] = {
    "a misspelled observer hook without the mark": with_("def on_stpe(self, step): pass"),
    "a misspelled optional hook without the mark": with_("def scoregroup(self, group): pass"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple[str, int]]]:
    """What each fault is answered with: {section: {fault: (message, exit code)}}."""
    folder = tmp_path_factory.mktemp("plugins")
    found: dict[str, dict[str, tuple[str, int]]] = {}
    cases = [("Loading", LOADING), ("Hooks", HOOKS), ("Building", CONSTRUCTING), ("Notes", DOUBTS)]
    for section, faults in cases:
        for number, (fault, case) in enumerate(faults.items()):
            slot, source = case if isinstance(case, tuple) else ("buffer", case)
            path = folder / f"{section}-{number}"
            module = f"mine_{section.lower()}_{number}"
            install_toys(path)
            modules = {module: source} if source or section != "Loading" else {}
            target = module if fault == NO_CLASS else f"{module}:Mine"
            more = {SLOTS["observers"].group: {"other": f"{module}:Observer"}} if fault == TWO else {}
            install(path, "dist-mine", {SLOTS[slot].group: {"mine": target}, **more}, modules=modules)
            action = {"Loading": loaded, "Hooks": loaded, "Building": built, "Notes": noted}[section]
            text, code = answer(path, lambda path=path, slot=slot, fault=fault, action=action: action(path, slot, fault))
            text = text.replace(str(path / f"{module}.py"), "mine.py").replace(module, "mine").replace(str(path), "DIR")
            found.setdefault(section, {})[fault] = (text.replace(f"node {socket.gethostname()}", "node NODE"), code)
    return found


def answer(path: Path, action: Callable[[], str]) -> tuple[str, int]:
    """What an action says with `path` first on the import path."""
    sys.path.insert(0, str(path))
    try:
        return action(), 0
    except AsyncrlError as error:
        assert SECRET not in f"{error}{error.__dict__}", "a secret is shown"
        return str(error), error.exit_code
    finally:
        sys.path.remove(str(path))


def loaded(path: Path, slot: str, fault: str) -> str:
    resolve(None, [f"--{slot}", "mine"], discover([str(path)]))
    return "accepted"


def noted(path: Path, slot: str, fault: str) -> str:
    config: RunConfig = resolve(None, [f"--{slot}", "mine"], discover([str(path)]))
    return "\n    ".join(config.notes)


def built(path: Path, slot: str, fault: str) -> str:
    version = "2.0" if "version" in fault else "1.0"
    name = "theirs" if "nothing" in fault else "mine"
    options = f'{{"token": "{SECRET}"}}' if "secret" in fault else "{}"
    specs = [PluginSpec(slot, name, "dist-mine", version, options)]
    build_host([*specs, PluginSpec("observers", "other", "dist-mine", version, "{}")] if fault == TWO else specs, FACTS)
    return "accepted"


def test_every_fault_is_one_line_and_exit_code_3_and_a_doubt_is_a_note(answers: dict[str, dict[str, tuple[str, int]]]) -> None:
    for section, faults in answers.items():
        for fault, (text, code) in faults.items():
            assert code == (0 if section == "Notes" else 3), fault
            assert len(text.splitlines()) == 1, fault


def test_the_answers_are_those_of_the_golden_file(answers: dict[str, dict[str, tuple[str, int]]]) -> None:
    parts = [
        f"{section}\n\n" + "".join(f"{fault}\n    {text}\n" for fault, (text, _) in faults.items())
        for section, faults in answers.items()
    ]
    text = "\n".join(parts)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_a_refused_hook_is_named_with_plugin_file_and_line(answers: dict[str, dict[str, tuple[str, int]]]) -> None:
    """Field reports 33 and 34."""
    for fault, (text, _) in answers["Hooks"].items():
        pattern = r"\w+ plugin 'mine' \(dist-mine 1\.0, mine:Mine\): \w+ at mine\.py:\d+: "
        assert re.match(pattern, text), f"{fault}: {text}"


def test_a_refused_class_is_named_with_plugin_file_and_line(answers: dict[str, dict[str, tuple[str, int]]]) -> None:
    """Where the import failed, the traceback says it."""
    for fault, (text, _) in answers["Loading"].items():
        if "can't be loaded" not in text and "can't be looked at" not in text and "is no class" not in text:
            pattern = r"\w+ plugin 'mine' \(dist-mine 1\.0, mine:Mine\): Mine(\.Options)? at mine\.py:\d+: "
            assert re.match(pattern, text), f"{fault}: {text}"
