"""How servers are started, attached to and placed, and what is refused before anything starts."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asyncrl import NO_FRONT, EngineNeeds, EnginePlace, FrontPlace, FrontSpec, RunFacts, ServerSpec
from asyncrl.errors import OptionError, ResourceError
from asyncrl.options import resolve
from asyncrl_sglang import SGLangEngine, SGLangOptions, launch
from asyncrl_sglang.flags import check, words

PLACE = EnginePlace(1, Path("/models/m"), "127.0.0.1", 31000, "cuda", "bfloat16", 7, Path("/logs/engine-1.txt"))


def engine(device: str = "cuda", num_engines: int = 2, **options: Any) -> SGLangEngine:
    run = RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1, device=device, num_engines=num_engines)
    return SGLangEngine(SGLangOptions(**options), run)


def spec(device: str = "cuda", **options: Any) -> ServerSpec:
    place = EnginePlace(1, PLACE.model, PLACE.host, PLACE.port, device, PLACE.dtype, PLACE.seed, PLACE.log_file)
    return engine(device, **options).engine_server(place)


def flags(server: ServerSpec | FrontSpec) -> dict[str, str | None]:
    """What follows each flag of a command line."""
    line = server.argv[next(place for place, word in enumerate(server.argv) if word[:2] == "--") :]
    values = [*line[1:], "--"]
    return {flag: None if value.startswith("--") else value for flag, value in zip(line, values, strict=True) if flag[:2] == "--"}


def test_on_gpus_only_what_the_run_and_its_options_say_is_passed():
    server = spec(tensor_parallel=4, memory_fraction=0.8, server_args={"max_running_requests": 64, "enable-metrics": True})
    assert server.argv[:2] == (sys.executable, launch.__file__)
    assert flags(server) == {
        "--model-path": "/models/m",
        "--host": "127.0.0.1",
        "--port": "31000",
        "--device": "cuda",
        "--dtype": "bfloat16",
        "--random-seed": "7",
        "--tensor-parallel-size": "4",
        "--data-parallel-size": "1",
        "--skip-server-warmup": None,
        "--mem-fraction-static": "0.8",
        "--max-running-requests": "64",
        "--enable-metrics": None,
    }
    assert (server.url, server.env) == ("http://127.0.0.1:31000", {})


def test_on_a_cpu_the_native_backends_are_chosen_unless_server_args_say_otherwise():
    server = spec("cpu", server_args={"sampling-backend": "other", "sleep-on-idle": False})
    found = flags(server)
    assert found["--attention-backend"] == "torch_native" and found["--sampling-backend"] == "other"
    assert "--sleep-on-idle" not in found
    assert server.env["SGLANG_USE_CPU_ENGINE"] == "1"


@pytest.mark.parametrize(
    ("options", "one"),
    [
        ({}, True),
        ({"tensor_parallel": 2}, True),
        ({"data_parallel": 2}, False),
        ({"server_args": {"nnodes": 2}}, False),
        ({"server_args": {"dist-init-addr": "10.0.0.1:5000"}}, False),
    ],
)
def test_processes_that_form_one_group_on_this_machine_meet_at_a_store_on_loopback(options: dict[str, Any], one: bool):
    assert launch.meet_at_one_store(spec(**options).argv[2:]) is one
    assert not launch.meet_at_one_store([*spec(**options).argv[2:], "--nccl-port=3000"])


def test_the_users_environment_comes_last():
    assert (
        spec("cpu", env={"SGLANG_USE_CPU_ENGINE": "0", "X": "y"}).env.items() >= {"SGLANG_USE_CPU_ENGINE": "0", "X": "y"}.items()
    )


@pytest.mark.parametrize(
    ("options", "gpus", "ranks"),
    [
        ({}, 1, 1),
        ({"tensor_parallel": 4}, 4, 4),
        ({"tensor_parallel": 4, "data_parallel": 2}, 8, 0),
        ({"tensor_parallel": 8, "data_parallel": 2, "server_args": {"enable_dp_attention": True}}, 8, 0),
        ({"tensor_parallel": 4, "server_args": {"pp_size": 2}}, 8, 0),
        ({"tensor_parallel": 4, "server_args": {"pipeline-parallel-size": "2"}}, 8, 0),
        ({"tensor_parallel": 4, "server_args": {"pp-size": "two"}}, 4, 4),
    ],
)
def test_devices_of_an_engine_and_its_ranks_in_a_weight_group(options, gpus, ranks):
    assert engine(**options).engine_needs() == EngineNeeds(gpus=gpus, cpus=1)
    assert engine("cpu", **options).engine_needs().gpus == 0
    assert spec(**options).weight_ranks == ranks


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"data_parallel": 2}, "engine.data_parallel"),
        ({"data_parallel": 2, "urls": ("http://a", "http://b")}, "engine.data_parallel"),
        ({"server_args": {"pp-size": 2}}, "engine.server_args"),
    ],
)
def test_engines_that_take_no_broadcast_are_refused_where_weights_come_by_it(options: dict[str, Any], named: str):
    """Before anything starts, though the first publication would tell; one that only evaluates loads from disk."""
    there = engine(**options)
    with pytest.raises(OptionError, match=rf"^{re.escape(named)}, publish_method: .*only without data and pipeline parallelism"):
        there.check_run(replace(there.run, publish_method="broadcast"))


def test_a_flag_spelled_in_both_ways_is_what_was_said_last():
    """As where the file has dashes and a command line's `--engine.server-args.enable-dp-attention` underscores."""
    server_args = {"enable-dp-attention": True, "enable_dp_attention": False}
    assert engine(data_parallel=2, server_args=server_args).engine_needs().gpus == 2
    assert "--enable-dp-attention" not in flags(spec(data_parallel=2, server_args=server_args))


def test_flags_on_the_command_line_are_switches_numbers_and_text():
    written = ("--engine.server-args", "sleep-on-idle=false", "--engine.server-args.enable-metrics", "true")
    given = ("--engine.server-args", "max-running-requests=64", "--engine.server-args", "revision=12e4567")
    chosen = next(one for one in resolve(None, ["--engine", "sglang", *written, *given]).plugins if one.found.slot == "engine")
    found = flags(spec("cpu", **chosen.options.model_dump(include={"server_args"})))
    assert "--sleep-on-idle" not in found and found["--enable-metrics"] is None
    assert (found["--max-running-requests"], found["--revision"]) == ("64", "12e4567")


def test_seeds_are_sent_only_to_servers_that_heed_them():
    assert not spec().takes_seeds
    assert spec(server_args={"enable-deterministic-inference": True}).takes_seeds


def test_servers_that_run_already_are_attached_to():
    there = engine(urls=("http://a:30000/", "http://b:30000"))
    there.check_run(there.run)
    assert there.engine_needs() == EngineNeeds(gpus=0, cpus=0)
    server = there.engine_server(PLACE)
    assert (server.argv, server.url) == ((), "http://b:30000")
    with pytest.raises(OptionError, match=r"engine\.urls, num_engines: there are 2 servers for num_engines = 3"):
        lacking = engine(num_engines=3, urls=("http://a", "http://b"))
        lacking.check_run(lacking.run)


def test_options_of_servers_that_are_started_are_refused_with_those_that_run_already():
    options = {"python": sys.executable, "memory_fraction": 0.8, "server_args": {"enable-metrics": True}, "env": {"A": "b"}}
    for name, value in options.items():
        with pytest.raises(
            OptionError, match=rf"engine\.urls, engine\.{name}: .*{name} would be for servers that the run starts"
        ):
            both = engine(num_engines=1, urls=("http://a",), **{name: value})
            both.check_run(both.run)
    with pytest.raises(OptionError, match=r"engine\.urls: one server is named twice"):
        twice = engine(urls=("http://a", "http://a/"))
        twice.check_run(twice.run)
    with pytest.raises(
        OptionError, match=r"engine\.api_key, engine\.urls: a key for servers that run already, and none is named"
    ):
        none = engine(api_key="secret")
        none.check_run(none.run)


def test_the_key_of_a_run_is_in_no_command_line_and_that_of_attached_servers_in_no_saved_option(monkeypatch):
    place = EnginePlace(1, PLACE.model, "0.0.0.0", PLACE.port, "cuda", PLACE.dtype, PLACE.seed, PLACE.log_file, "the-key")
    server = engine().engine_server(place)
    assert server.api_key == "the-key" and "the-key" in server.env.values()
    assert "the-key" not in f"{server}{place}{server.argv}"

    monkeypatch.setenv("ASYNCRL_ENGINE_API_KEY", "from-the-environment")
    for options, key in (({}, "from-the-environment"), ({"api_key": "as-option"}, "as-option")):
        attached = engine(urls=("http://a", "http://b"), **options)
        assert attached.engine_server(PLACE).api_key == key
        assert key not in repr(attached.options)


@pytest.mark.parametrize("url", ["http://me:secret@a:30000", "http://a:30000/?key=secret", "a:30000"])
def test_an_address_that_is_none_or_holds_a_key_is_refused_without_quoting_the_key(url: str):
    with pytest.raises(OptionError, match=r"engine\.urls: .*is no address of a server") as refused:
        there = engine(num_engines=1, urls=(url,))
        there.check_run(there.run)
    assert "secret" not in str(refused.value)


def test_a_key_among_the_flags_is_refused():
    with pytest.raises(OptionError, match="--api-key is set by bind") as refused:
        check(sys.executable, {"api_key": "secret"}, Path("/nowhere"))
    assert "secret" not in str(refused.value)


def test_an_interpreter_that_is_missing_or_has_no_sglang_is_refused(tmp_path: Path):
    with pytest.raises(ResourceError, match=r"engine\.python: there is no interpreter at /nowhere/python"):
        missing = engine(python="/nowhere/python")
        missing.check_run(missing.run)
    script = tmp_path / "script"
    script.write_text("no program")
    script.chmod(0o755)
    with pytest.raises(ResourceError, match=r"engine\.python: .*script can't import sglang"):
        wrong = engine(python=str(script))
        wrong.check_run(wrong.run)
    if not _has_sglang():
        with pytest.raises(ResourceError, match=r"engine\.python: .* can't import sglang"):
            engine().check_run(engine().run)


def test_a_list_among_the_flags_holds_text_or_numbers():
    given = {"cuda-graph-bs": [1, 2, 4], "x": ["a", 0.5]}
    server = spec(server_args=SGLangOptions.model_validate_json(SGLangOptions(server_args=given).model_dump_json()).server_args)
    assert server.argv[-7:] == ("--cuda-graph-bs", "1", "2", "4", "--x", "a", "0.5")


def test_words_of_a_command_line():
    assert words({"a-b": 1, "on": True, "off": False, "many": ["x", "y"], "ratio": 0.5}) == [
        *("--a-b", "1", "--on", "--many", "x", "y", "--ratio", "0.5")
    ]


def _has_sglang() -> bool:
    from importlib.util import find_spec

    return find_spec("sglang") is not None


PLACE_IN_FRONT = FrontPlace("127.0.0.1", 30100, 30101, 600.0)


def test_without_a_router_requests_go_to_the_engines_themselves():
    assert engine().engine_front(PLACE_IN_FRONT) == NO_FRONT


def test_the_router_tries_nothing_again_and_leaves_no_server_out_by_itself():
    front = engine(router="sglang-router", router_args={"policy": "cache_aware", "log_level": "info"}).engine_front(
        PLACE_IN_FRONT
    )
    assert front.argv[:3] == (sys.executable, "-m", "sglang_router.launch_router") and front.url == "http://127.0.0.1:30100"
    found = flags(front)
    assert found.items() >= {"--disable-retries": None, "--disable-circuit-breaker": None, "--disable-health-check": None}.items()
    assert (found["--host"], found["--prometheus-host"], found["--prometheus-port"]) == ("127.0.0.1", "127.0.0.1", "30101")
    assert float(found["--request-timeout-secs"] or 0) > 600, "asyncrl's own deadline comes first"
    assert (found["--policy"], found["--log-level"]) == ("cache_aware", "info")


def test_a_router_that_is_not_installed_is_refused_and_so_are_flags_that_asyncrl_relies_on():
    missing = engine(router="sglang-router", urls=("http://a", "http://b"))
    with pytest.raises(ResourceError, match=r"engine\.router: .* has no sglang-router \(.* -m pip install sglang-router"):
        missing.check_run(missing.run)
    contradicted = engine(router="sglang-router", router_args={"retry_max_retries": 3})
    with pytest.raises(OptionError, match=r"engine\.router_args: --retry-max-retries is asyncrl's to set"):
        contradicted.check_run(contradicted.run)
    pointless = engine(router_args={"policy": "random"})
    with pytest.raises(OptionError, match=r"engine\.router_args, engine\.router: .*no router"):
        pointless.check_run(pointless.run)
