"""Every mistake a user can make in file or flags, and the one line it is answered with: `golden/errors.txt`.

UPDATE_GOLDEN=1 pytest tests/cli/test_errors.py      write the golden file again
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from asyncrl.cli.main import report
from asyncrl.errors import AsyncrlError
from asyncrl.options import resolve
from asyncrl.plugins import discover
from fake_distributions import install, install_toys

GOLDEN = Path(__file__).parent / "golden" / "errors.txt"
FLAGS = """
--bufer fifo
--learning-rate 1e-4
--step 5
--buffer fif
--buffer jsonl
--buffer other:fifo
--buffer twice
--buffer fifo,priority
--buffer :fifo
--observers mine
--filters reward-variance,lenght
--loggers jsonl,jsonl
--buffer
--buffer.capacity 3
--buffer.alpha 1
--buffer.name priority
--buffer.fifo.capacity-factor 3
--trainer.learningrate 1
--filters.length.x 1
--filters.x 1
--simulate 3
--simulate
--simulate. 3
--buffer. 3
--steps ten
--steps 1.5
--steps 0
--steps
--no-steps
--top-p 1.5
--top-k 0
--temperature 0
--base-port 70000
--name a/b
--device tpu
--eval-before-training=maybe
--eval-before-training maybe
--buffer.capacity-factor 0.5
--trainer.schedule cosin
--trainer.layers 1 --trainer.layers x
--trainer.layers 1,2
--trainer.labels a,b
--trainer.labels [a,b]
--trainer.environment A=1,B=2
--trainer.environment A
--trainer.low 3
--trainer.compile 3
--task from-file
--max-concurrent-samples 4
--group-size 32 --max-concurrent-samples 16
--on-unused retry --max-retries 0
--base-port 65535 --num-engines 2
--publish-mode abort
-x
a.toml b.toml
missing.toml
""".strip().splitlines()
FILES = r"""
steps = "100"
steps = 0
steps = [
stpes = 3
learning_rate = 1e-4
buffer = "fifo"
[bufer]
[buffer]\nname = 3
[buffer]\nname = "fif"
[buffer]\ncapacity-factor = 3
[buffer]\ncapacity_factor = true
[buffer]\nbatch_size = 3
[buffer]\nname = "fifo"\nalpha = 3
filters = ["length"]
[filters]\nlength = 3
[filters.lenght]
[loggers.jsonl]\npath = "x"
[trainer]\nlayers = [1, "x"]
[trainer]\nenvironment = { A = 1 }
[trainer]\nlow = 3
publish_mode = "abort"
max_concurrent_samples = 4
[task]\nname = "from-file"
""".strip().splitlines()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """What each mistake is answered with: {as written: (stderr, exit code)}."""
    folder = tmp_path_factory.mktemp("errors")
    install_toys(folder / "installed")
    for name in ("dist-one", "dist-two"):
        install(folder / "installed", name, {"asyncrl.buffers": {"twice": "toy_plugins:ToyBuffer"}})
    catalog = discover([str(folder / "installed")])
    before = Path.cwd()
    os.chdir(folder)
    found = {}
    try:
        for written in [*(f"asyncrl train {flags}" for flags in FLAGS), *(f"run.toml: {text}" for text in FILES)]:
            arguments = shlex.split(written.removeprefix("asyncrl train "))
            if written.startswith("run.toml: "):
                Path("run.toml").write_text(written.removeprefix("run.toml: ").replace("\\n", "\n"))
                arguments = ["run.toml"]
            try:
                resolve(None, arguments, catalog)
                found[written] = ("accepted", 0)
            except AsyncrlError as error:
                found[written] = (str(error), error.exit_code)
    finally:
        os.chdir(before)
    return found


def test_every_mistake_is_answered_by_one_line_and_exit_code_2(answers: dict[str, tuple[str, int]]) -> None:
    for written, (text, code) in answers.items():
        assert code == 2, written
        assert len(text.splitlines()) == 1, written


def test_the_answers_are_those_of_the_golden_file(answers: dict[str, tuple[str, int]]) -> None:
    text = "".join(f"{written}\n    {answer}\n" for written, (answer, _) in answers.items())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_a_plugins_fault_is_reported_with_the_whole_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field report 29."""
    install_toys(tmp_path)
    install(tmp_path, "broken", {"asyncrl.buffers": {"broken": "no_such_module:C"}})
    with pytest.raises(AsyncrlError) as caught:
        resolve(None, ["--buffer", "broken"], discover([str(tmp_path)]))
    report(caught.value)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "asyncrl: error: buffer plugin 'broken' (broken 1.0, no_such_module:C) can't be loaded: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert lines[1] == "  Traceback (most recent call last):"
    assert caught.value.exit_code == 3
