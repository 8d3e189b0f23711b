"""A run's configuration: defaults < file < flags, every value with its origin, and a file that gives it again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asyncrl.checking import hint
from asyncrl.errors import OptionError, ResourceError, UserError
from asyncrl.fields import from_text
from asyncrl.options import RunConfig, resolve
from asyncrl.plugins import Catalog, discover
from asyncrl.run_options import RunOptions
from fake_distributions import install_toys
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Place:
    """A folder with the toys' catalog; `resolve` writes the file, when there is one, into it."""

    folder: Path
    catalog: Catalog

    def resolve(self, toml: str | None = None, *arguments: str) -> RunConfig:
        file = None
        if toml is not None:
            file = self.folder / "run.toml"
            file.write_text(toml)
        return resolve(file, arguments, self.catalog)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("options")
    install_toys(folder / "installed")
    return Place(folder, discover([str(folder / "installed")]))


def names(config: RunConfig, slot: str) -> list[str]:
    return [plugin.found.name for plugin in config.plugins if plugin.found.slot == slot]


def options(config: RunConfig, slot: str) -> Any:
    return next(plugin.options for plugin in config.plugins if plugin.found.slot == slot)


# Precedence and origin --------------------------------------------------------------------------------------------------


def test_flags_win_over_the_file_and_the_file_over_defaults(place: Place) -> None:
    config = place.resolve("steps = 7\nseed = 3\n[buffer]\ncapacity_factor = 3", "--steps", "9")
    assert (config.core.steps, config.core.seed, config.core.batch_size) == (9, 3, 16)
    assert options(config, "buffer").capacity_factor == 3.0
    file = place.folder / "run.toml"
    assert config.origins == {
        "steps": "--steps",
        "seed": f"{file}: seed",
        "buffer.capacity_factor": f"{file}: buffer.capacity_factor",
    }


def test_an_error_raised_later_is_told_with_the_origin_of_its_options(place: Place) -> None:
    config = place.resolve("seed = 3", "--base-port", "7000")
    error = config.located(ResourceError("port 7000 can't be used", origin="base_port, steps"))
    assert str(error) == "--base-port, steps: port 7000 can't be used"


def test_a_file_may_begin_with_a_byte_order_mark(place: Place) -> None:
    assert place.resolve("\N{BYTE ORDER MARK}steps = 7").core.steps == 7


@pytest.mark.parametrize(
    ("name", "options", "near"),
    [
        ("STEPS", ["steps", "seed"], "steps"),
        ("simulate.foo", ["simulate.slots", "simulate.steps"], ""),
        ("buffer.capacity", ["buffer.capacity_factor", "seed"], "buffer.capacity_factor"),
        ("capacity_factor", ["buffer.capacity_factor", "seed"], "buffer.capacity_factor"),
        ("bufer.capacity_factor", ["buffer.capacity_factor", "seed"], "buffer.capacity_factor"),
    ],
)
def test_of_a_misspelled_option_the_nearest_is_named_and_none_that_only_shares_its_table(
    name: str, options: list[str], near: str
) -> None:
    assert hint(name, options, "", otherwise="") == (f"did you mean {near}?" if near else "")


def test_without_a_file_the_defaults_are_selected(place: Place) -> None:
    config = place.resolve()
    assert [plugin.found.name for plugin in config.plugins] == [
        *("sort-digits", "single-turn", "sample", "fifo", "none", "torch", "fsdp", "shared", "console", "jsonl")
    ]


def test_tables_of_a_slot_of_many_select_in_their_order_and_an_empty_one_selects_none(place: Place) -> None:
    config = place.resolve("[filters.reward-variance]\n[filters.length]\n[loggers]")
    assert names(config, "filters") == ["reward-variance", "length"]
    assert names(config, "loggers") == []
    assert names(place.resolve("[filters.length]", "--filters", ""), "filters") == []


# Choosing by flag -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", ["none", ""])
def test_a_flag_can_select_none_in_a_slot_of_many(place: Place, nothing: str) -> None:
    assert names(place.resolve("[filters.reward-variance]", "--filters", nothing), "filters") == []
    assert names(place.resolve("", "--loggers", nothing), "loggers") == []


def test_options_of_the_files_plugin_do_not_leak_into_the_one_a_flag_chose(place: Place) -> None:
    """Field report 37: `alpha` would be an error for fifo, and capacity_factor would be taken over unseen."""
    config = place.resolve('[buffer]\nname = "priority"\ncapacity_factor = 5.0\nalpha = 2.0', "--buffer", "fifo")
    assert options(config, "buffer").capacity_factor == 2.0
    assert config.notes == (f"{place.folder / 'run.toml'}: buffer.name: its options are not used, --buffer chose otherwise",)


def test_two_flags_for_a_slot_of_one_must_agree(place: Place) -> None:
    with pytest.raises(OptionError, match="^--buffer: buffer takes one plugin, got priority and fifo"):
        place.resolve("", "--buffer", "priority", "--buffer", "fifo")
    assert names(place.resolve("", "--buffer", "fifo", "--buffer", "fifo"), "buffer") == ["fifo"]


def test_a_flag_that_names_the_files_own_plugin_keeps_its_options(place: Place) -> None:
    config = place.resolve('[buffer]\nname = "priority"\nalpha = 2.0', "--buffer", "toys:priority", "--buffer.capacity-factor=4")
    assert (options(config, "buffer").alpha, options(config, "buffer").capacity_factor) == (2.0, 4.0)
    assert config.notes == ()


# What flags mean ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "texts", "value"),
    [
        (bool | int | str, ["true"], True),
        (bool | int | str, ["7"], 7),
        (bool | int | str, ['"7"'], "7"),
        (float | str, ["1e999"], "1e999"),  # perhaps a name, as one of a commit is
        (str | list[str], ['["a"]'], ["a"]),
        (list[int | str], ["1", "a"], [1, "a"]),
        (dict[str, int | str], ["a=1", "b=x"], {"a": 1, "b": "x"}),
        (dict[str, str], ["a=1", "b=true"], {"a": "1", "b": "true"}),
        (str | None, ["7"], "7"),
    ],
)
def test_where_text_and_other_values_fit_what_is_spelled_as_another_is_one(kind: Any, texts: list[str], value: Any) -> None:
    found = from_text(FieldInfo(annotation=kind), texts)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [
        (["--trainer.learning-rate", "1e-4"], "learning_rate", 1e-4),
        (["--trainer.learning_rate=1"], "learning_rate", 1.0),
        (["--trainer.low", "-1"], "low", -1.0),
        (["--trainer.high", "inf"], "high", float("inf")),
        (["--trainer.layers", "[1, 2]"], "layers", [1, 2]),
        (["--trainer.layers", "1", "--trainer.layers", "2"], "layers", [1, 2]),
        (["--trainer.layers", "3"], "layers", [3]),
        (["--trainer.layers", "[1, 2]", "--trainer.layers", "3"], "layers", [1, 2, 3]),
        (["--trainer.labels", "a", "--trainer.labels", "b"], "labels", ["a", "b"]),
        (["--trainer.labels", '["a, b", "c"]', "--trainer.labels", "17"], "labels", ["a, b", "c", "17"]),
        (["--trainer.environment", '{"A": "1"}'], "environment", {"A": "1"}),
        (["--trainer.environment", "A=1", "--trainer.environment", "B=x=y"], "environment", {"A": "1", "B": "x=y"}),
        (["--trainer.environment", '{"A": "x=y"}'], "environment", {"A": "x=y"}),
        (["--trainer.environment", "DEVICES=0,1"], "environment", {"DEVICES": "0,1"}),
        (["--trainer.compile"], "compile", True),
        (["--trainer.compile", "--steps", "3"], "compile", True),
        (["--no-trainer.compile"], "compile", False),
        (["--trainer.compile=true"], "compile", True),
        (["--trainer.limit", "3"], "limit", 3),
        (["--trainer.limit", "3", "--trainer.limit", "none"], "limit", None),
        (["--trainer.schedule", "cosine"], "schedule", "cosine"),
    ],
)
def test_a_flags_text_is_read_by_the_options_type(place: Place, arguments: list[str], option: str, value: Any) -> None:
    assert getattr(options(place.resolve(None, *arguments), "trainer"), option) == value


@pytest.mark.parametrize(
    ("option", "texts", "right"),
    [
        ("labels", ["a,b"], '["a", "b"]'),
        ("labels", ["[a, b]"], '["a", "b"]'),
        ("labels", ["[a]"], '["a"]'),
        ("labels", ["a", "b,c"], '["b", "c"]'),
        ("layers", ["1,2"], "[1, 2]"),
        ("environment", ["A=1,B=2"], '{"KEY": "VALUE"}'),
        ("environment", ["A"], '{"KEY": "VALUE"}'),
    ],
)
def test_what_may_be_meant_as_several_is_refused_with_the_right_spelling(
    place: Place, option: str, texts: list[str], right: str
) -> None:
    flags = [argument for text in texts for argument in (f"--trainer.{option}", text)]
    with pytest.raises(OptionError) as caught:
        place.resolve(None, *flags)
    assert str(caught.value).startswith(f"--trainer.{option}: got {texts[-1]!r}, wants ")
    assert "(commas do not separate: give the flag once for each " in str(caught.value)
    assert str(caught.value).endswith(f", or JSON as in '{right}')")
    if "KEY" not in right:
        assert getattr(options(place.resolve(None, f"--trainer.{option}={right}"), "trainer"), option) == json.loads(right)


def test_a_list_of_tables_is_given_one_table_a_flag(place: Place) -> None:
    faults = ['{"engine": 0, "at": 5, "kind": "die"}', '{"engine": 0, "at": 50, "kind": "revive"}']
    written = [argument for fault in faults for argument in ("--simulate.faults", fault)]
    assert [fault.at for fault in place.resolve(None, *written).simulate.faults] == [5, 50]
    with pytest.raises(OptionError, match=r"got '\{kind: die, engine: 0\}', wants list of table"):
        place.resolve(None, "--simulate.faults", "{kind: die, engine: 0}")


def test_names_of_plugins_may_be_separated_by_commas_or_by_flags(place: Place) -> None:
    for flags in (["--loggers", "jsonl,console"], ["--loggers", "jsonl", "--loggers", "console"]):
        assert names(place.resolve(None, *flags), "loggers") == ["jsonl", "console"]


def test_a_switch_of_core_does_not_swallow_the_file(place: Place) -> None:
    file = place.folder / "swallow.toml"
    file.write_text("steps = 5")
    config = resolve(None, ["--eval-before-training", str(file), "--no-eval-before-training"], place.catalog)
    assert (config.file, config.core.steps, config.core.eval_before_training) == (file, 5, False)


def test_text_that_looks_like_a_number_stays_text(place: Place) -> None:
    assert place.resolve(None, "--name", "17").core.name == "17"


# Paths --------------------------------------------------------------------------------------------------------------------


def test_paths_of_a_file_refer_to_it_and_those_of_flags_and_defaults_to_here(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = place.resolve('model = "m"\n[task]\nname = "from-file"\npath = "data/x"', "--publish-dir", "p")
    assert config.core.model == place.folder / "m"
    assert options(config, "task").path == place.folder / "data/x"
    assert (config.core.publish_dir, config.core.runs_dir) == (tmp_path / "p", tmp_path / "runs")
    assert options(config, "trainer").folder == tmp_path / "scratch"


@pytest.mark.parametrize(
    ("file", "flags"),
    [
        ('model = ""', ()),
        ('runs_dir = ""', ()),
        ('[simulate]\ntrace = ""', ()),
        ('[task]\nname = "from-file"\npath = ""', ()),
        ('[trainer]\nfolder = ""', ()),
        (None, ("--model", "")),
        (None, ("--publish-dir=",)),
        (None, ("--trainer.folder", "")),
    ],
)
def test_an_empty_path_is_refused_and_not_taken_for_none_or_the_current_directory(
    place: Place, file: str | None, flags: Sequence[str]
) -> None:
    with pytest.raises(OptionError, match="got '', wants a path"):
        place.resolve(file, *flags)


# Written again ----------------------------------------------------------------------------------------------------------------


def same(one: RunConfig, two: RunConfig) -> None:
    assert two.core == one.core.model_copy(update={"name": ""})
    assert [plugin.wanted for plugin in two.plugins] == [plugin.wanted for plugin in one.plugins]
    assert two.specs == one.specs


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TRAINER = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": st.floats(0, 1e6),
        "layers": st.lists(st.integers(-9, 2**60)),
        "labels": st.lists(TEXT),
        "environment": st.dictionaries(TEXT, TEXT),
        "compile": st.booleans(),
        "limit": st.none() | st.integers(1, 10**9),
        "high": st.floats(1.0, allow_infinity=True),
        "folder": st.text("abc/. é", min_size=1, max_size=8),
    },
)
CORE = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(1, 10**9),
        "group_size": st.integers(1, 64),
        "max_concurrent_samples": st.none() | st.integers(64, 999),
        "temperature": st.floats(0, 9, exclude_min=True),
        "publish_mode": st.sampled_from(["retract", "in_place"]),
        "eval_before_training": st.booleans(),
        "name": st.from_regex(re.compile(r"\A\w[\w.-]{0,5}\Z", re.ASCII)),
        "runs_dir": st.text("ab/.", min_size=1, max_size=6),
        "ray_address": st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    },
)


@settings(max_examples=25, deadline=None)
@given(core=CORE, trainer=TRAINER, many=st.lists(st.sampled_from(["reward-variance", "length"]), unique=True), toml=st.booleans())
def test_a_configuration_written_as_toml_is_read_back_the_same(
    place: Place, core: Mapping[str, Any], trainer: Mapping[str, Any], many: list[str], toml: bool
) -> None:
    arguments = [f"--filters={','.join(many)}"]
    for prefix, values in (("", core), ("trainer.", trainer)):
        arguments += [
            f"--{prefix}{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()
        ]
    config = place.resolve(None, *arguments)
    for key, value in {**core, **trainer}.items():
        if key not in ("folder", "runs_dir"):
            assert getattr(config.core if key in core else options(config, "trainer"), key) == value
    same(config, place.resolve(config.to_toml()))


def test_the_written_file_names_every_option(place: Place) -> None:
    text = place.resolve(
        None, "--max-concurrent-samples", "64", "--max-sample-tokens", "999", "--model", "m", "--name", "first"
    ).to_toml()
    assert set(RunOptions.model_fields) - {"name"} <= {line.split(" = ")[0] for line in text.splitlines()}
    assert "# Unset: trainer.limit, trainer.token" in text


def test_a_secret_is_given_to_the_plugin_and_written_nowhere(place: Place) -> None:
    config = place.resolve('[trainer]\ntoken = "hunter2"')
    assert options(config, "trainer").token.get_secret_value() == "hunter2"
    for shown in (config.to_toml(), config.to_json(), repr(config), repr(config.specs)):
        assert "hunter2" not in shown
    spec = next(spec for spec in config.specs if spec.slot == "trainer")
    kind = next(kind for kind in config.classes if kind.slot == "trainer")
    assert kind.Options.model_validate_json(spec.options, strict=True) == options(config, "trainer")


def test_a_wrong_secret_is_not_repeated_in_the_error(place: Place) -> None:
    with pytest.raises(OptionError, match=r"got something else, wants secret text or none$") as caught:
        place.resolve("[trainer]\ntoken = [4711]")
    assert "4711" not in str(caught.value)


# Facts and declarations -----------------------------------------------------------------------------------------------------


def test_the_facts_of_a_run_say_what_was_configured(place: Place) -> None:
    facts = place.resolve(
        None, "--batch-size", "3", "--group-size", "4", "--scheduler", "lockstep", "--on-unused", "retry"
    ).facts()
    assert (facts.batch_size, facts.group_size, facts.max_concurrent_samples, facts.synchronous) == (3, 4, 12, True)
    assert facts.on_unused == "retry"
    assert not place.resolve().facts().synchronous


def test_every_option_of_core_has_a_help_text_and_every_number_a_bound() -> None:
    model: type[BaseModel] = RunOptions
    for name, info in model.model_fields.items():
        assert info.description and info.description.endswith("."), name
        if info.annotation in (int, float):
            assert info.metadata, name


def test_an_error_is_a_user_error_with_its_own_exit_code() -> None:
    assert issubclass(OptionError, UserError) and OptionError.exit_code == 2
