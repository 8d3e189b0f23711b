"""Which engines an eval backend gets of its own is settled before anything starts, from what was written for the rollout's and for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asyncrl import EngineNeeds, EngineSet, EvalPlugin, Launch, ServerSpec, hookimpl
from asyncrl.errors import OptionError, PluginFailed, ResourceError, UnknownPlugin
from asyncrl.host import Active, Host
from asyncrl.options import resolve
from asyncrl.plugins import build_host
from asyncrl.runtime.eval_engines import engine_job
from asyncrl.runtime.eval_plan import EvalEnginePlan, plan_eval_engines, require_own_servers

ROLLOUT = EngineSet("torch", {"dtype": "float32", "tp": 4, "dp": 2, "fast": True}, 3, ("tp", "dp"))


def plan(*flags: str, toml: str = "", folder: Path | None = None) -> EvalEnginePlan:
    file = None
    if folder is not None:
        file = folder / "run.toml"
        file.write_text(toml)
    config = resolve(file, flags)
    facts = replace(config.facts(), device="cpu")
    made = plan_eval_engines(config, build_host(config.specs, facts), facts)
    assert made is not None
    return made


def options(made: EvalEnginePlan) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.spec.options)
    return found


def test_a_backend_on_the_rollout_engines_has_none_of_its_own() -> None:
    config = resolve(None, ["--eval", "shared"])
    assert plan_eval_engines(config, build_host(config.specs, config.facts()), config.facts()) is None


def test_the_fleet_inherits_every_option_of_the_rollout_engines() -> None:
    made = plan("--eval", "fleet", "--engine.threads", "3", "--engine.max-running", "9", "--num-engines", "4")
    assert (options(made)["threads"], options(made)["max_running"]) == (3, 9)
    assert (made.engines.count, made.facts.num_engines, made.needs) == (1, 1, (EngineNeeds(0, 1),))
    assert made.comparable


def test_an_override_changes_the_fleet_and_not_the_rollout_engines(tmp_path: Path) -> None:
    toml = '[engine]\nname = "torch"\nthreads = 3\n[eval]\nname = "fleet"\nnum_engines = 2\n[eval.engine]\nmax_running = 5\n'
    made = plan("--eval.engine.threads", "1", toml=toml, folder=tmp_path)
    assert (options(made)["threads"], options(made)["max_running"]) == (1, 5)
    assert len(made.needs) == made.engines.count == 2


@pytest.mark.parametrize("backend", [("fleet",), ("sglang", "--eval.engine", "torch")], ids=["placed", "launched"])
def test_servers_of_a_backend_are_bound_where_the_run_says_and_require_its_key(backend: tuple[str, ...]) -> None:
    made = plan("--eval", *backend, "--bind", "0.0.0.0")
    job = engine_job(made, 0, Path("model"), "0.0.0.0", "the-key-of-the-run", Path("logs"))
    spec: ServerSpec = build_host([made.spec], made.facts).one("engine_server")(place=job.place)
    assert (job.place.host, spec.api_key) == ("0.0.0.0", "the-key-of-the-run")
    assert "0.0.0.0" in spec.argv and "the-key-of-the-run" not in f"{job}{spec}{spec.argv}"


def test_engines_that_only_evaluate_take_weights_from_disk_whatever_the_rollouts_do() -> None:
    assert plan("--eval", "fleet", "--publish-method", "broadcast").facts.publish_method == "disk"


def test_weights_of_another_precision_have_no_comparable_digest() -> None:
    made = plan("--eval", "fleet", "--eval.engine.dtype", "bfloat16")
    assert (made.facts.dtype, made.comparable) == ("bfloat16", False)


def test_parallel_sizes_fall_back_to_1_when_one_of_them_differs() -> None:
    assert ROLLOUT.derive(1, {}).options == ROLLOUT.options
    assert ROLLOUT.derive(1, {"fast": False}).options == {"dtype": "float32", "tp": 4, "dp": 2, "fast": False}
    assert ROLLOUT.derive(1, {"tp": 2}).options == {"dtype": "float32", "tp": 2, "dp": 1, "fast": True}
    assert ROLLOUT.derive(1, {"tp": 2, "dp": 3}).options == {"dtype": "float32", "tp": 2, "dp": 3, "fast": True}


def test_a_launched_server_takes_nothing_of_the_cluster() -> None:
    flags = ("--eval.devices", "6,7", "--eval.server-args=--max-running=7", "--eval.python", "/opt/python", "--num-engines", "3")
    made = plan("--eval", "sglang", "--engine.threads", "2", *flags)
    assert made.engines.launch == Launch("6,7", 0, ("--max-running=7",), "/opt/python")
    assert (made.engines.count, made.needs, options(made)["threads"]) == (1, (), 2)


def test_running_servers_are_attached_to_by_address() -> None:
    made = plan("--eval", "sglang", "--eval.url", "http://a:1", "--eval.url", "http://b:2")
    assert (made.engines.urls, made.engines.count, made.engines.launch, made.needs) == (("http://a:1", "http://b:2"), 2, None, ())


@pytest.mark.parametrize(
    ("flags", "origin", "words"),
    [
        (("--eval.engine.threds", "1"), "--eval.engine.threds", "did you mean eval.engine.threads"),
        (("--eval.engine.threads", "0"), "--eval.engine.threads", "wants integer >= 1"),
        (("--eval.engine", "threads=0"), "--eval.engine.threads", "wants integer >= 1"),
        (("--eval.engine.dtype", "int4"), "--eval.engine.dtype", "got 'int4'"),
    ],
)
def test_a_wrong_override_is_refused_where_it_was_written(flags: tuple[str, ...], origin: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        plan("--eval", "fleet", *flags)
    assert caught.value.origin == origin
    assert words in str(caught.value)


def test_a_wrong_override_in_a_file_is_named_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        plan(toml='[eval]\nname = "fleet"\n[eval.engine]\nthreads = "2"\n', folder=tmp_path)
    assert caught.value.origin == f"{tmp_path / 'run.toml'}: eval.engine.threads"


def test_an_engine_that_is_not_installed_is_refused() -> None:
    with pytest.raises(UnknownPlugin, match="did you mean 'torch'") as caught:
        plan("--eval", "sglang", "--eval.engine", "torhc")
    assert caught.value.origin == "--eval.engine"


def test_a_port_that_is_taken_is_refused(unused_port_taken: int) -> None:
    with pytest.raises(ResourceError) as caught:
        plan("--eval", "sglang", "--eval.port", str(unused_port_taken))
    assert caught.value.origin == "eval.port"


@pytest.fixture
def unused_port_taken() -> Any:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([1, 2], "right is an EngineSet"),
        (ROLLOUT.derive(0, {}), "0 engines; it takes at least 1"),
        (replace(ROLLOUT, launch=Launch()), "3 engines to launch outside the cluster; one can be"),
    ],
)
def test_an_answer_that_is_no_set_of_engines_is_the_plugins_fault(answer: Any, words: str) -> None:
    class Strange(EvalPlugin):
        hook_api = 1
        slot = "eval"
        name = "strange"

        @hookimpl
        def eval_engines(self, rollout: EngineSet) -> EngineSet:
            return answer

    config = resolve(None, [])
    plugin = Strange(Strange.Options(), config.facts())
    host = Host([Active("eval", "strange", "somebody", "1", plugin)])
    with pytest.raises(PluginFailed, match=words):
        plan_eval_engines(config, host, config.facts())


ATTACHED = ("--engine", "sglang", "--engine.urls", "http://a:1", "--model", "/models/m")


def check_own(*flags: str) -> EvalEnginePlan:
    """As a run does before it starts."""
    config = resolve(None, [*ATTACHED, *flags])
    facts = replace(config.facts(), device="cpu")
    rollout = build_host(config.specs, facts)
    made = plan_eval_engines(config, rollout, facts)
    assert made is not None
    require_own_servers(made, rollout, facts)
    return made


@pytest.mark.parametrize("flags", [("fleet",), ("sglang",), ("sglang", "--eval.url", "http://a:1/")])
def test_servers_that_generate_for_training_are_never_evaluated_on_as_if_they_were_free(flags: tuple[str, ...]) -> None:
    """A fleet, and a server that is launched, inherit the addresses that the rollout engines are attached to."""
    with pytest.raises(
        OptionError, match=r"engine, eval: evaluations would load their weights into http://a:1, where the rollout"
    ):
        check_own("--eval", *flags)


def test_other_servers_than_those_that_generate_are_evaluated_on() -> None:
    made = check_own("--eval", "sglang", "--eval.url", "http://b:1", "--eval.url", "http://c:1")
    assert made.engines.urls == ("http://b:1", "http://c:1")
    made = check_own("--eval", "fleet", "--eval.engine.urls", '["http://b:1"]')
    assert options(made)["urls"] == ["http://b:1"] and made.needs == (EngineNeeds(gpus=0, cpus=0),)
