"""Whatever is wrong with the data or the options is one clear line, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asyncrl import DataError, OptionError, RunFacts
from asyncrl.options import resolve
from asyncrl_jsonl_task import JsonLinesOptions, JsonLinesTask
from asyncrl_jsonl_task.order import Order
from asyncrl_jsonl_task.rows import Fields, read_rows
from asyncrl_jsonl_task.text import Text
from planted_code import plant
from pydantic import ValidationError

RUN = RunFacts(batch_size=4, group_size=4, max_concurrent_samples=16, steps=10)
GOOD = {"prompt": "1+1=", "answer": "2"}
Write = Callable[..., Path]


def check(path: Path | None, run: RunFacts = RUN, **options: Any) -> None:
    JsonLinesTask(JsonLinesOptions(path=path, **options), run).check_run(run)


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        check(path, **options)
    text = str(caught.value)
    assert "\n" not in text and caught.value.exit_code == 2
    return text.replace(str(path), path.name)


def test_good_data_passes(write: Write) -> None:
    path = write(GOOD, {"prompt": [{"role": "user", "content": "hi"}], "answer": 3}, {**GOOD, "answer": 0.5})
    check(path, eval={"held-out": path})


def test_checking_loads_no_tokenizer_and_no_torch(write: Write) -> None:
    script = f"""
import sys
from asyncrl import RunFacts
from asyncrl_jsonl_task import JsonLinesOptions, JsonLinesTask
run = RunFacts(4, 4, 16, 10)
JsonLinesTask(JsonLinesOptions(path={str(write(GOOD))!r}, scorer="math"), run).check_run(run)
assert not {{"torch", "transformers", "sympy", "math_verify"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_only_evaluating_needs_no_training_data(write: Write) -> None:
    evaluated = replace(RUN, steps=0)
    check(None, evaluated, eval={"held-out": write(GOOD)})
    with pytest.raises(OptionError, match=r"^task\.path: the jsonl task has no training data \(set it to a file of JSON objects"):
        check(None, eval={"held-out": write(GOOD)})
    with pytest.raises(DataError, match=r"^task\.eval\.hard: .*none\.jsonl does not exist$"):
        check(None, evaluated, eval={"hard": Path("none.jsonl")})


def test_a_missing_file_is_named_with_its_option(tmp_path: Path, write: Write) -> None:
    assert refused(tmp_path / "none.jsonl") == "task.path: none.jsonl does not exist"
    with pytest.raises(DataError, match=r"^task\.eval\.hard: .*none\.jsonl does not exist$"):
        check(write(GOOD), eval={"hard": tmp_path / "none.jsonl"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "a", "answer": }', "no valid JSON: "),
        (b'{"prompt": "a"', "no valid JSON: "),
        (b'{"prompt": "\xff", "answer": "b"}', "no valid JSON: "),
        (b"[" * 100_000, "no valid JSON: "),
        (b"[1, 2]", "a list where an object is wanted"),
        (b'{"question": "a", "answer": "b"}', "no field 'prompt' (its fields: 'question', 'answer'; task.prompt_field names"),
        (b'{"prompt": "a"}', "no field 'answer' (its fields: 'prompt'; task.answer_field names"),
        (b'{"prompt": 3, "answer": "b"}', "field 'prompt' is a number where text or a list of messages"),
        (b'{"prompt": "", "answer": "b"}', "field 'prompt' is empty where text or a list of messages"),
        (b'{"prompt": ["hi"], "answer": "b"}', "field 'prompt' is a list where text or a list of messages"),
        (b'{"prompt": [{"role": "user"}], "answer": "b"}', "field 'prompt' is a list where"),
        (b'{"prompt": "a", "answer": null}', "field 'answer' is null where text or a number is wanted"),
        (b'{"prompt": "a", "answer": true}', "field 'answer' is true or false where text or a number is wanted"),
        (b'{"prompt": "a", "answer": {"x": 1}}', "field 'answer' is an object where text or a number is wanted"),
        (b'{"prompt": "a", "answer": "  "}', "field 'answer' is empty"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(line: bytes, message: str, write: Write) -> None:
    assert refused(write(GOOD, b"", line, GOOD)).startswith(f"task.path: train.jsonl, line 3: {message}")


def test_a_wrong_line_of_an_eval_set_is_found_too(write: Write) -> None:
    bad = write(GOOD, b"{", name="eval.jsonl")
    with pytest.raises(DataError, match=r"^task\.eval\.hard: .*eval\.jsonl, line 2: no valid JSON"):
        check(write(GOOD), eval={"hard": bad})


def test_an_empty_file_and_an_empty_directory_are_refused(tmp_path: Path, write: Write) -> None:
    assert refused(write()) == "task.path: train.jsonl has no rows"
    assert refused(write(b"", b"  ")) == "task.path: train.jsonl has no rows"
    (tmp_path / "data").mkdir()
    assert refused(tmp_path / "data") == "task.path: data is a directory without *.jsonl files"


def test_a_directory_is_its_files_in_order(tmp_path: Path, write: Write) -> None:
    write({**GOOD, "answer": "second"}, name="b.jsonl")
    write({**GOOD, "answer": "first"}, name="a.jsonl")
    (tmp_path / "notes.txt").write_text("no data")
    assert [row.answer for row in read_rows(tmp_path, Fields("prompt", "answer", ""), "task.path")] == ["first", "second"]


def test_fields_are_named_by_options_and_a_byte_order_mark_is_no_fault(write: Write) -> None:
    path = write(b'\xef\xbb\xbf{"question": "1+1=", "solution": 2, "key": "q7"}')
    (row,) = read_rows(path, Fields("question", "solution", "key"), "task.path")
    assert (row.prompt, row.answer, row.source) == ("1+1=", "2", "train.jsonl:1 (q7)")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scorer": "vibes"}, "'exact', 'regex' or 'math'"),
        ({"scorer": "regex"}, "scorer regex needs a pattern"),
        ({"scorer": "regex", "pattern": "(unclosed"}, "is no regular expression"),
        ({"scorer": "math", "pattern": "x"}, "pattern is only for scorer regex, and scorer is math"),
        ({"system_prompt": "x", "chat_template": False}, "system_prompt needs chat_template"),
        ({"eval_samples_per_prompt": 4}, "eval_samples_per_prompt above 1 needs an eval_temperature above 0"),
        (
            {"eval": {"x": {"path": "x", "samples_per_prompt": 4}}},
            "eval set 'x': 4 samples_per_prompt need a temperature above 0",
        ),
        (
            {"eval": {"x": {"path": "x", "temperature": 0}}, "eval_temperature": 1.0, "eval_samples_per_prompt": 2},
            "eval set 'x': 2 samples_per_prompt need a temperature above 0",
        ),
        ({"eval": {"x": {"temperature": 1}}}, "eval.x.table.path"),
        ({"eval": {"x": {"path": "x", "temprature": 1}}}, "eval.x.table.temprature"),
        ({"eval": {"x": {"path": "x", "limit": 0}}}, "greater than or equal to 1"),
        ({"eval": {"x": {"path": "x", "top_k": 0}}}, "top_k 0 would leave no token"),
        ({"eval": {"x": {"path": "x", "pass_reward": float("nan")}}}, "finite number"),
        ({"scoring_timeout": 0}, "greater than 0"),
        ({"eval": {"a/b": "x"}}, "pattern"),
        ({"promt_field": "x"}, "not permitted"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JsonLinesOptions(**{"path": "train.jsonl", **options})


def test_options_survive_being_written_as_json() -> None:
    sets = {"x": Path("b"), "y": {"path": "c", "temperature": 0.7, "samples_per_prompt": 8}}
    options = JsonLinesOptions.model_validate({"path": "a", "eval": sets, "template_arguments": {"enable_thinking": False}})
    assert JsonLinesOptions.model_validate_json(options.model_dump_json(), strict=True) == options


def test_every_option_has_help() -> None:
    assert all(field.description for field in JsonLinesOptions.model_fields.values())


def test_what_needs_a_chat_template_is_refused_without_one(write: Write, plain_model: Path, chat_model: Path) -> None:
    chat = write(GOOD, {"prompt": [{"role": "user", "content": "hi"}], "answer": 3})
    plain = RunFacts(4, 4, 16, 10, model=str(plain_model))
    with pytest.raises(OptionError, match=r"^task\.path: train\.jsonl:2: a list of messages needs a chat template"):
        check(chat, plain)
    with pytest.raises(OptionError, match=r"task\.chat_template is off"):
        check(chat, RUN, chat_template=False)
    with pytest.raises(OptionError, match=r"^task\.system_prompt: a system prompt needs a chat template"):
        check(write(GOOD), plain, system_prompt="Be brief.")
    check(chat, RunFacts(4, 4, 16, 10, model=str(chat_model)), system_prompt="Be brief.")


def test_the_files_of_eval_sets_are_found_beside_the_runs_file(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[task]\nname = "jsonl"\npath = "train.jsonl"\n[task.eval]\neasy = "easy.jsonl"\nhard = {path = "hard.jsonl", limit = 2}\n'
    )
    monkeypatch.chdir(tmp_path.parent)
    flags = ["--trainer.old-policy", "engine"]
    (task,) = (one for one in resolve(file, flags).plugins if one.found.slot == "task")
    assert isinstance(task.options, JsonLinesOptions)
    assert [task.options.eval_set(name).path for name in ("easy", "hard")] == [tmp_path / "easy.jsonl", tmp_path / "hard.jsonl"]
    flag = ["--task.eval", '{"hard": {"path": "hard.jsonl", "limit": 3}}']
    (task,) = (one for one in resolve(file, [*flags, *flag]).plugins if one.found.slot == "task")
    assert isinstance(task.options, JsonLinesOptions)
    assert (task.options.eval_set("hard").path, task.options.eval_set("hard").limit) == (Path.cwd() / "hard.jsonl", 3)
    with pytest.raises(OptionError, match=r"task\.eval: .*temprature"):
        resolve(file, [*flags, "--task.eval", '{"hard": {"path": "hard.jsonl", "temprature": 3}}'])


def test_it_has_no_model_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^model: the jsonl task has no model of its own"):
        JsonLinesTask(JsonLinesOptions(path=tmp_path), RUN).task_model(tmp_path)


def test_every_epoch_visits_each_row_once_in_an_order_of_its_own() -> None:
    order = Order(50, seed=1, shuffle=True)
    epochs = [[order.row(epoch * 50 + index) for index in range(50)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs[1] == [Order(50, seed=1, shuffle=True).row(50 + index) for index in range(50)]
    assert epochs[0] != [Order(50, seed=2, shuffle=True).row(index) for index in range(50)]
    assert [Order(3, seed=1, shuffle=False).row(position) for position in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_never_changes_between_releases() -> None:
    assert [Order(8, seed=0, shuffle=True).row(position) for position in range(16)] == ORDER_OF_SEED_0


ORDER_OF_SEED_0 = [2, 6, 0, 4, 1, 3, 5, 7, 4, 0, 6, 1, 2, 7, 5, 3]


def test_the_code_of_a_tokenizer_is_never_run(plain_model: Path, tmp_path: Path) -> None:
    marker = plant(plain_model, tmp_path / "planted")
    with pytest.raises(OptionError, match="model: .* needs code of its own, which is never run: trust_remote_code is off"):
        Text(tmp_path / "planted", chat_template=True, template_arguments={}, system_prompt="")
    assert not marker.exists()
