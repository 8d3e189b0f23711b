"""A table among a plugin's options, given key by key on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asyncrl.errors import OptionError
from asyncrl.options import resolve

FILE = '[eval]\nname = "fleet"\n[eval.engine]\nthreads = 2\nmax_running = 3\n'


def table(toml: str, *flags: str, folder: Path) -> dict[str, Any]:
    file = folder / "run.toml"
    file.write_text(toml)
    config = resolve(file, flags)
    (folder / "again.toml").write_text(config.to_toml())
    assert resolve(folder / "again.toml", []).to_dict() == config.to_dict()
    engine: dict[str, Any] = config.to_dict()["eval"]["engine"]
    return engine


def test_a_flag_for_one_key_leaves_the_others_as_the_file_has_them(tmp_path: Path) -> None:
    assert table(FILE, "--eval.engine.threads", "4", folder=tmp_path) == {"threads": 4, "max_running": 3}


def test_values_are_read_as_json_where_a_table_takes_anything(tmp_path: Path) -> None:
    flags = (
        "--eval.engine.max-context",
        "7",
        "--eval.engine.ratio=0.5",
        "--eval.engine.word",
        "seven",
        "--eval.engine.quoted",
        '"7"',
    )
    assert table("", "--eval", "fleet", *flags, folder=tmp_path) == {
        "max_context": 7,
        "ratio": 0.5,
        "word": "seven",
        "quoted": "7",
    }


def test_a_key_is_switched_on_and_off(tmp_path: Path) -> None:
    assert table(FILE, "--eval.engine.fast", "--no-eval.engine.warm", folder=tmp_path) == {
        "threads": 2,
        "max_running": 3,
        "fast": True,
        "warm": False,
    }


def test_the_last_flag_for_a_key_counts_and_goes_over_the_whole_table(tmp_path: Path) -> None:
    flags = ("--eval.engine.threads", "4", "--eval.engine.threads", "5", "--eval.engine", '{"threads": 9, "seed": 1}')
    assert table(FILE, *flags, folder=tmp_path) == {"threads": 5, "seed": 1}


def test_each_key_has_an_origin_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    origins = resolve(file, ["--no-eval.engine.warm-up"]).origins
    assert (origins["eval.engine"], origins["eval.engine.warm_up"]) == (f"{file}: eval.engine", "--no-eval.engine.warm-up")


@pytest.mark.parametrize("flag", ["--eval.engin.threads", "--eval.num-engines.x", "--buffer.foo.bar"])
def test_a_key_of_what_is_no_table_is_no_option(flag: str) -> None:
    with pytest.raises(OptionError, match="there is no such option") as caught:
        resolve(None, ["--eval", "fleet", flag, "3"])
    assert caught.value.origin == flag
