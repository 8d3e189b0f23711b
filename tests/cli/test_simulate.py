"""`asyncrl simulate` as a user runs it: what it prints, compares and draws, and the one line for each mistake: `golden/simulate.txt`.

UPDATE_GOLDEN=1 pytest tests/cli/test_simulate.py      write the golden file again
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asyncrl.cli import simulate
from asyncrl.cli.main import main
from asyncrl.errors import AsyncrlError
from asyncrl.options import resolve
from fake_distributions import install

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden" / "simulate.txt"
SMALL = """
steps = 6
batch_size = 4
group_size = 2

[loggers]

[simulate]
length_mean = 20
warmup_steps = 1
"""
BROKEN = {
    "empty.jsonl": "",
    "negative.jsonl": "[3, 4]\n[3, -4]\n",
    "words.jsonl": "three\n",
    "none.jsonl": "[]\n",
    "long.jsonl": "[3, 300]\n",
    "good.jsonl": "[3, 30]\n7\n",
    "huge.jsonl": f"3\n[1{'0' * 400}]\n",
    "slow.jsonl": f'{{"tokens": [3], "seconds": [1{"0" * 400}]}}\n',
    "rich.jsonl": '{"tokens": [3], "rewards": [1e300]}\n',
}
FLAGS = """
--compare shedular=sample
--compare scheduler
--compare scheduler=
--compare scheduler=sample,,group
--compare scheduler=sample,sample
--compare scheduler=sample --compare scheduler=group
--compare
--compare engine=torch
--compare loggers=console
--compare buffer.alpha=1,2
--compare buffer=fifo --compare buffer.order=oldest
--compare scheduler=group,paced
--compare max-concurrent-samples=1,64
--sweep buffer.capacity-factor=1,0.5
--sweep buffer.capacity-factor=1,1.0
--compare scheduler=sample,asyncrl-plugin-sample:sample --sweep steps=6,7
--sweep buffer.order=freshest,oldest
--sweep nope=3
--sweep steps=3,x
--no-compare x
--no-sweep
--no-plot
--nope
--jsn
--sweep step=3
--sweep simulate.slot=3
--sweep trainer.learning-rate=1
--sweep scheduler=sample,group
--plot figure.gif
--plot figure
--plot missing/figure.png
--plot .
--plot
--json=maybe
--simulate 3
--simulate.slot 3
--simulate.slots 0
--simulate.engines 1.5
--simulate.engines 100000000
--simulate.slots 1000000000
--simulate.train-seconds 1e13
--simulate.publish-seconds 1e300
--simulate.eval-seconds 1e7
--simulate.load-slowdown 1e4
--simulate.length-sigma 100
--simulate.length-clip 1e9
--simulate.tokens-per-second 1e-300
--simulate.faults '[{"engine": 0, "at": 1e7, "kind": "die"}]'
--simulate.faults '[{"engine": 0, "at": 1, "kind": "slow", "factor": 1e-9}]'
--num-engines 100000000
--steps 10000000000
--request-timeout 1e7
--model ''
--publish-dir ''
--simulate.tokens-per-second 0
--simulate.load-slowdown 0.5
--simulate.lengths normal
--simulate.lengths trace
--simulate.length-mean 300
--simulate.length-clip 0.5
--simulate.steps 5 --simulate.warmup-steps 5
--simulate.warmup-steps 6
--simulate.lengths constant --simulate.trace good.jsonl
--simulate.trace ''
--simulate.trace huge.jsonl
--simulate.trace slow.jsonl
--simulate.trace rich.jsonl
--simulate.trace missing.jsonl
--simulate.trace empty.jsonl
--simulate.trace negative.jsonl
--simulate.trace words.jsonl
--simulate.trace none.jsonl
--simulate.trace long.jsonl
--simulate.trace .
--simulate.faults '[{"engine": 1, "at": 3, "kind": "die"}]'
--simulate.faults '[{"engine": 0, "at": -3, "kind": "die"}]'
--simulate.faults '[{"engine": 0, "at": 3, "kind": "explode"}]'
--simulate.faults '[{"engine": 0, "at": 3, "kind": "revive"}]'
--simulate.faults '[{"engine": 0, "at": 3, "kind": "die"}, {"engine": 0, "at": 4, "kind": "hang"}]'
--simulate.faults '[{"engine": 0, "at": 3, "kind": "die", "factor": 2}]'
--simulate.faults '[{"engine": 0, "at": 3}]'
a.toml
""".strip().splitlines()
FILES = r"""
simulate = 3
[simulat]
[simulate]\nslot = 3
[simulate]\nslots = "3"
[simulate]\ntrace = ""
[simulate]\nlength_mean = -3
[[simulate.faults]]\nengine = 0\nat = 3\nkind = "dies"
[[simulate.faults]]\nengine = 0\nat = 3\nkind = "die"\nwhen = 3
""".strip().splitlines()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(SMALL)


def documents(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What `--json` prints; nothing else may be on stdout, and nothing at all on stderr."""
    assert main(["simulate", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def command(*arguments: str, path: Path | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(path or ""), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "asyncrl", *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


# Mistakes ---------------------------------------------------------------------------------------------------------------


def answer(arguments: list[str]) -> tuple[str, int]:
    try:
        simulate.run(arguments)
    except AsyncrlError as error:
        return str(error), error.exit_code
    return "accepted", 0


def test_every_mistake_is_answered_by_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in BROKEN.items():
        Path(name).write_text(text)
    answers = {f"asyncrl simulate run.toml {flags}": answer(["run.toml", *shlex.split(flags)]) for flags in FLAGS}
    for text in FILES:
        Path("run.toml").write_text(text.replace("\\n", "\n"))
        answers[f"run.toml: {text}"] = answer(["run.toml"])
    for written, (text, code) in answers.items():
        assert code == 2, written
        assert len(text.splitlines()) == 1, written
    assert capsys.readouterr().out == ""
    golden = "".join(f"{written}\n    {text.replace(str(tmp_path), '…')}\n" for written, (text, _) in answers.items())
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(golden)
    assert golden == GOLDEN.read_text()


@pytest.mark.parametrize(
    "flags", ["--max-concurrent-samples 1000000000", "--batch-size 1000000000 --group-size 2", "--max-new-tokens 2000000000"]
)
def test_what_memory_can_not_hold_is_refused_before_it_is_built(flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.simulation.size.available_bytes", lambda: 64 * 10**9)
    text, code = answer(["run.toml", "--simulate.length-mean", "none", *flags.split()])
    assert code == 2
    assert re.fullmatch(rf"{flags.split()[0]}.*: that takes about [\d,.]+ GB of memory, and 64\.0 GB are free .*", text)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a folder in which nobody can make a file")
def test_a_figure_that_can_not_be_written_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.simulation.scenario.Scenario.run", lambda *_: pytest.fail("it was simulated"))
    for name in ("/proc/x.svg", f"{'x' * 300}.svg"):
        text, code = answer(["run.toml", "--plot", name])
        assert (text[:30], code) == (f"--plot: {name!r} can't be written"[:30], 2)


def test_looking_whether_a_figure_can_be_written_leaves_everything_as_it_was() -> None:
    Path("old.svg").write_text("old")
    Path("link.svg").symlink_to("nowhere.svg")
    os.mkfifo("pipe.svg")
    for name, code in (("old.svg", 2), ("new.svg", 2), ("link.svg", 2), ("pipe.svg", 2)):
        assert answer(["run.toml", "--plot", name, "--nope"])[1] == code
    assert Path("old.svg").read_text() == "old"
    assert sorted(os.listdir()) == ["link.svg", "old.svg", "pipe.svg", "run.toml"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["--help", "simulate run.toml --steps 2", "simulate --help", "plugins list"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_output_that_can_not_be_written_is_one_line(line: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "asyncrl", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (1, "asyncrl: error: the output can't be written: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_the_exit_code_stays_where_nobody_can_be_told() -> None:
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-m", "asyncrl", "nope"], stderr=full, timeout=120).returncode == 2


FAULTS = '[{"engine": 0, "at": 1, "kind": "hang"}, {"engine": 1, "at": 1e6, "kind": "slow", "factor": 1000}]'


@pytest.mark.parametrize(
    "flags",
    [
        "--simulate.train-seconds 1e6 --simulate.tokens-per-second 1e6 --simulate.publish-seconds 1e6",
        "--simulate.train-seconds 0 --simulate.tokens-per-second 1e-3 --request-timeout 1e6",
        "--simulate.engines 2 --simulate.slots 1000000 --simulate.load-slowdown 1000 --simulate.train-seconds 1e6 --simulate.faults X",
        "--simulate.length-sigma 10 --simulate.length-clip 1000000 --simulate.length-mean 1",
        "--simulate.length-sigma 10 --simulate.length-clip 0 --simulate.load-slowdown 1000",
    ],
)
def test_the_greatest_and_smallest_values_that_are_taken_end(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [FAULTS if word == "X" else word for word in flags.split()]
    assert main(["simulate", "run.toml", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["trained"] == 6 * 4


def test_an_error_of_a_simulation_names_no_log_files_of_engines(capsys: pytest.CaptureFixture[str]) -> None:
    fault = '[{"engine": 0, "at": 1, "kind": "die"}]'
    assert main(["simulate", "run.toml", "--steps", "100", "--simulate.faults", fault]) == 1
    err = capsys.readouterr().err
    assert "no engine is alive, for 300 s now: engine-0 (the faults left none: let one revive sooner)" in err


def test_a_plugin_that_is_not_installed_is_answered_with_the_nearest_name() -> None:
    text, code = answer(["run.toml", "--compare", "scheduler=sample,grup"])
    assert text.startswith("--compare scheduler=grup: no scheduler plugin 'grup' is installed; did you mean 'group'?")
    assert code == 2


def test_a_figure_without_matplotlib_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text, code = answer(["run.toml", "--plot", "figure.png"])
    assert (text, code) == ("--plot: matplotlib is not installed (pip install 'asyncrl[plot]')", 2)


@pytest.mark.parametrize("text", FILES[1:])
def test_training_refuses_the_same_in_the_table_that_it_leaves_alone(text: str) -> None:
    Path("run.toml").write_text(text.replace("\\n", "\n"))
    with pytest.raises(AsyncrlError) as caught:
        resolve(Path("run.toml"), [])
    assert caught.value.exit_code == 2


def test_a_run_keeps_what_its_file_says_of_a_simulation(tmp_path: Path) -> None:
    """`config.toml` of a run can be simulated as the file could."""
    config = resolve(Path("run.toml"), ["--simulate.slots", "3", "--simulate.trace", "x.jsonl"])
    Path("config.toml").write_text(config.to_toml())
    assert resolve(Path("config.toml"), []).simulate == config.simulate
    assert (config.simulate.slots, config.simulate.trace, config.simulate.length_mean) == (3, tmp_path / "x.jsonl", 20.0)
    assert "[simulate]" not in resolve(None, []).to_toml()


# One run ----------------------------------------------------------------------------------------------------------------


def test_one_run_is_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "run.toml"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for row in (
        "steps",
        "step time",
        "step / limit",
        "busy",
        "staleness",
        "groups",
        "dropped",
        "tokens",
        "lengths",
        "longest wait",
    ):
        assert re.search(rf"^  {re.escape(row)}  +\S", out, re.MULTILINE), row
    assert "limit of the bound" not in out


def test_without_a_file_the_defaults_make_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    one = documents(capsys, "--steps", "10")
    assert one["steps"] == 10
    assert one["simulated"]["engines"] * one["simulated"]["slots"] == 16 * 8
    assert one["limit_generation"] == pytest.approx(one["limit_training"], rel=0.2)


def test_json_is_one_document_whose_books_balance(capsys: pytest.CaptureFixture[str]) -> None:
    one = documents(capsys, "run.toml", "--staleness", "max-gap", "--staleness.max-staleness", "0")
    groups = one["groups"]
    assert groups["issued"] == groups["trained"] + groups["dropped"] + groups["unfinished"]
    assert groups["trained"] == 6 * 4
    assert groups["dropped"] == sum(one["dropped"].values()) > 0
    assert len(one["step_seconds"]) == 6 - 1
    assert one["token_age_max"] == 0
    assert one["simulated"]["plugins"]["staleness"]["max-gap"]["max_staleness"] == 0


def test_the_same_seed_gives_the_same_run_and_another_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (documents(capsys, "run.toml", "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again
    assert first["step_seconds"] != other["step_seconds"]


def test_a_bound_that_the_trainer_waits_for_is_kept_and_its_limit_said(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--scheduler", "paced", "--staleness", "max-gap", "--staleness.on-stale", "wait", "--steps", "30"]
    one = documents(capsys, "run.toml", *flags)
    assert one["groups"]["dropped"] == 0
    assert one["token_age_max"] <= 1
    least = (one["seconds_max"] + one["simulated"]["train_seconds"] + one["simulated"]["publish_seconds"]) / 2
    assert one["limit_bound"] == pytest.approx(least)
    assert main(["simulate", "run.toml", *flags]) == 0
    assert re.search(rf"limit of the bound  {least:.3f} s", capsys.readouterr().out)


def test_a_trace_gives_the_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    Path("trace.jsonl").write_text('[10, 30]\n{"tokens": [20, 20], "rewards": [1, 0]}\n')
    one = documents(capsys, "run.toml", "--simulate.trace", "trace.jsonl")
    assert one["length_issued"] == pytest.approx(20, rel=0.1)
    assert one["length_max"] == 30


def test_engines_that_slow_down_under_load_are_faster_in_the_tail_of_a_batch(capsys: pytest.CaptureFixture[str]) -> None:
    constant, slowed = documents(capsys, "run.toml", "--scheduler", "lockstep", "--sweep", "simulate.load-slowdown=1,4")
    assert slowed["step_mean"] < constant["step_mean"]
    assert slowed["limit_generation"] == pytest.approx(constant["limit_generation"]), "at full load they are equally fast"


def test_faults_of_engines_are_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    faults = (
        '[[simulate.faults]]\nengine = 0\nat = 0.5\nkind = "die"\n[[simulate.faults]]\nengine = 0\nat = 3.0\nkind = "revive"\n'
    )
    Path("run.toml").write_text(SMALL + "engines = 2\n" + faults)
    assert main(["simulate", "run.toml", "--steps", "40", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["groups"]["trained"] == 40 * 4
    assert err == "asyncrl: warning: engine-0 is back and takes requests again\n"


# Several side by side -----------------------------------------------------------------------------------------------------


def test_a_comparison_has_a_row_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "run.toml", "--compare", "scheduler=sample,group,lockstep"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^  (sample|group|lockstep) +\d+\.\d{3}", out, re.MULTILINE) == ["sample", "group", "lockstep"]
    assert re.search(r"^  lockstep +100\.0%", out, re.MULTILINE), "below: shares by staleness"


def test_comparisons_and_sweeps_together_give_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    found = documents(
        capsys, "run.toml", "--sweep", "buffer.capacity_factor=1,2", "--compare", "scheduler=sample,group", "--sweep", "steps=5"
    )
    assert [one["variant"] for one in found] == [
        {"buffer.capacity-factor": factor, "scheduler": name, "steps": "5"} for factor in "12" for name in ("sample", "group")
    ]
    for one in found:
        assert list(one["simulated"]["plugins"]["scheduler"]) == [one["variant"]["scheduler"]]
        assert one["simulated"]["plugins"]["buffer"]["fifo"]["capacity_factor"] == float(one["variant"]["buffer.capacity-factor"])


def test_a_variant_is_what_a_run_with_its_flags_would_be(capsys: pytest.CaptureFixture[str]) -> None:
    alone = documents(capsys, "run.toml", "--scheduler", "group")
    compared = documents(capsys, "run.toml", "--compare", "scheduler=sample,group")[1]
    assert compared.pop("variant") == {"scheduler": "group"}
    assert alone.pop("variant") == {}
    assert compared == alone


def test_options_of_the_files_plugin_do_not_leak_into_the_one_it_is_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    """Field report 37."""
    Path("run.toml").write_text(SMALL + '[buffer]\nname = "priority"\norder = "oldest"\ncapacity_factor = 1.0\n')
    assert main(["simulate", "run.toml", "--compare", "buffer=priority,fifo", "--json"]) == 0
    priority, fifo = (one["simulated"]["plugins"]["buffer"] for one in json.loads(capsys.readouterr().out))
    assert (priority["priority"]["order"], priority["priority"]["capacity_factor"]) == ("oldest", 1.0)
    assert fifo["fifo"] == {"capacity_factor": 2.0}


def test_a_slot_of_several_is_compared_with_none(capsys: pytest.CaptureFixture[str]) -> None:
    without, with_one = documents(capsys, "run.toml", "--compare", "filters=none,reward-variance")
    assert without["groups"]["dropped"] == 0
    assert list(with_one["simulated"]["plugins"]["filters"]) == ["reward-variance"]
    assert set(with_one["dropped"]) == {"no_variance"}


@pytest.mark.parametrize(("name", "head"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_the_figure_is_written(name: str, head: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--staleness", "max-gap", "--staleness.on-stale", "wait", "--compare", "scheduler=sample,paced", "--plot", name]
    assert main(["simulate", "run.toml", *flags]) == 0
    assert Path(name).read_bytes().startswith(head)


# Plugins, endings -------------------------------------------------------------------------------------------------------------

SCHEDULER = """
import sys
from asyncrl import LoadView, SchedulerPlugin, hookimpl

class Stuck(SchedulerPlugin):
    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        return 0

class One(SchedulerPlugin):
    said = False

    @hookimpl
    def submission_quota(self, load: LoadView) -> int:
        if not self.said:
            self.said = True
            print("asked", file=sys.stderr, flush=True)
        return 1 - load.groups_in_flight
"""


def test_a_third_partys_scheduler_is_simulated_as_it_would_be_trained_with(tmp_path: Path) -> None:
    install(tmp_path, "theirs", {"asyncrl.schedulers": {"one": "theirs:One"}}, modules={"theirs": SCHEDULER})
    with command("simulate", "run.toml", "--compare", "scheduler=one,sample", "--json", path=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "asked\n")
    one, sample = json.loads(out)
    assert one["step_mean"] > sample["step_mean"]
    assert one["slots_busy"] < 0.5 < sample["slots_busy"]


def test_a_run_that_can_not_go_on_is_one_typed_error(tmp_path: Path) -> None:
    install(tmp_path, "theirs", {"asyncrl.schedulers": {"stuck": "theirs:Stuck"}}, modules={"theirs": SCHEDULER})
    with command("simulate", "run.toml", "--compare", "scheduler=sample,stuck", path=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (3, "")
    assert re.fullmatch(
        r"asyncrl: error: variant scheduler=stuck: the trainer waited [^\n]+ scheduler plugin 'stuck' [^\n]+\n", err
    )


def test_ctrl_c_ends_it_with_130(tmp_path: Path) -> None:
    install(tmp_path, "theirs", {"asyncrl.schedulers": {"one": "theirs:One"}}, modules={"theirs": SCHEDULER})
    with command("simulate", "run.toml", "--scheduler", "one", "--steps", "1000000", path=tmp_path) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")


def test_neither_ray_nor_torch_is_imported() -> None:
    code = (
        "import sys; from asyncrl.cli.main import main\n"
        "assert main(['simulate', 'run.toml', '--compare', 'scheduler=sample,group']) == 0\n"
        "print('\\nMODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    modules = {name.split(".")[0] for name in done.stdout.rsplit("MODULES", 1)[1].split()}
    assert not modules & {"ray", "torch", "transformers", "matplotlib"}


def test_progress_is_shown_on_a_terminal_and_wiped_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(simulate, "PROGRESS_SECONDS", 0.0)
    assert main(["simulate", "run.toml", "--compare", "scheduler=sample,group"]) == 0
    assert "simulating group: step 3 of 6" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")
    assert "simulating" not in capsys.readouterr().out


def test_help_has_the_options_of_the_command_and_of_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--help", "--buffer", "fifo"]) == 0
    out = capsys.readouterr().out
    for flag in (
        "--compare SLOT=NAME",
        "--sweep OPTION=VALUE",
        "--plot FILE",
        "--json",
        "--simulate.slots",
        "--steps",
        "--buffer.capa",
    ):
        assert f"\n  {flag}" in out, flag
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.search(r"^  simulate  +\S", capsys.readouterr().out, re.MULTILINE)


def test_the_example_shows_what_schedulers_cost(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    file = "examples/simulate.toml"
    sample, group, lockstep = documents(capsys, file, "--compare", "scheduler=sample,group,lockstep", "--steps", "60")
    assert sample["over_limit"] <= 1.013
    assert group["over_limit"] == pytest.approx(2.75, rel=0.05)
    assert lockstep["over_limit"] == pytest.approx(5.3, rel=0.02)


def test_the_example_shows_what_a_bound_costs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropping throws groups away, the long ones first. Waiting throws nothing away, and takes what it must."""
    monkeypatch.chdir(ROOT)
    bound = ["examples/simulate.toml", "--steps", "60", "--staleness", "max-gap", "--staleness.max-staleness", "2"]
    [dropping] = documents(capsys, *bound, "--compare", "scheduler=sample")
    [waiting] = documents(capsys, *bound, "--staleness.on-stale", "wait", "--compare", "scheduler=paced")
    assert dropping["token_age_max"] == waiting["token_age_max"] == 2
    assert dropping["dropped"]["stale"] > 0 and waiting["dropped"] == {}
    assert dropping["length_trained"] < 0.9 * dropping["length_issued"]
    assert waiting["length_trained"] == pytest.approx(waiting["length_issued"], rel=1e-9)
    assert 1.0 <= waiting["step_mean"] / waiting["limit_bound"] <= 1.05
