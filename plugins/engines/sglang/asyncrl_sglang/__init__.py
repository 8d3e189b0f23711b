"""SGLang servers as engines: one server an engine, launched on the devices that the run gave it, or attached to.

SGLang pins exact versions of torch and transformers, so that it is never imported here: the server may run under another environment's
interpreter.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

from asyncrl import (
    NO_FRONT,
    EngineNeeds,
    EnginePlace,
    EnginePlugin,
    FrontPlace,
    FrontSpec,
    PluginOptions,
    RunFacts,
    ServerSpec,
    checked_url,
    hookimpl,
)
from asyncrl.errors import OptionError, ResourceError
from pydantic import Field, SecretStr

from asyncrl_sglang.flags import ServerArgs, check, words
from asyncrl_sglang.launch import KEY_VARIABLE
from asyncrl_sglang.router import check_router, router

CPU_ARGS: ServerArgs = {
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "disable-overlap-schedule": True,
    "sleep-on-idle": True,  # else an idle server keeps a core busy
    "max-total-tokens": 32768,
    "max-running-requests": 64,
}
"""What SGLang needs where there is no GPU; `server_args` overrides each."""

LAUNCH = ("python", "memory_fraction", "server_args", "env")
"""Options of servers that are started."""

ATTACHED_KEY_VARIABLE = "ASYNCRL_ENGINE_API_KEY"


class SGLangOptions(PluginOptions):
    """Options of SGLang engines."""

    python: str = Field(
        "", description="Interpreter of the environment that has SGLang; empty is the one that runs asyncrl. A path or a command."
    )
    tensor_parallel: int = Field(1, ge=1, description="GPUs over which each copy of the model is spread.")
    data_parallel: int = Field(1, ge=1, description="Copies of the model in one server; it takes tensor_parallel GPUs for each.")
    memory_fraction: float = Field(
        0.0, ge=0, lt=1, description="Part of the GPU's memory for weights and KV cache; 0 leaves it to SGLang."
    )
    server_args: dict[str, bool | int | float | str | list[int | float | str]] = Field(
        default={},
        description="Further flags of `sglang.launch_server`, without dashes; true is one without a value, false none.",
    )
    env: dict[str, str] = Field(default={}, description="Environment variables for the servers.")
    urls: tuple[str, ...] = Field(
        (), description="Servers that run already, one for each engine; they are attached to, and go on when the run ends."
    )
    api_key: SecretStr = Field(
        default_factory=lambda: SecretStr(os.environ.get(ATTACHED_KEY_VARIABLE, "")),
        description=f"Key that the servers at `urls` require; unset, what the environment variable {ATTACHED_KEY_VARIABLE} holds.",
    )
    router: Literal["", "sglang-router"] = Field(
        "",
        description="What spreads requests over the engines: empty is asyncrl itself; sglang-router is SGLang's router, a process of its "
        "own, installed beside SGLang.",
    )
    router_args: ServerArgs = Field(
        default={}, description="Further flags of the router, without dashes, such as its policy; true is one without a value."
    )
    start_timeout: float = Field(300.0, gt=0, description="Seconds until a server must answer; large models load longer.")


class SGLangEngine(EnginePlugin):
    """Starts `sglang.launch_server`, or attaches to servers that run already."""

    Options = SGLangOptions
    options: SGLangOptions
    hook_api = 1
    parallel_sizes: ClassVar[tuple[str, ...]] = ("tensor_parallel", "data_parallel")

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        options = self.options
        if options.router:
            check_router(self._python(), options.router_args)
        elif options.router_args:
            raise OptionError(
                "flags for a router, and no router",
                origin="engine.router_args, engine.router",
                remedy='set engine.router = "sglang-router", or leave the flags out',
            )
        if run.publish_method == "broadcast" and not self._weight_ranks():
            wide = "engine.data_parallel" if options.data_parallel > 1 else "engine.server_args"
            raise OptionError(
                "SGLang takes weights by broadcast only without data and pipeline parallelism",
                origin=f"{wide}, publish_method",
                remedy='set publish_method = "disk", or spread over more engines with num_engines',
            )
        if options.urls:
            self._check_attached(run)
            return
        if options.api_key.get_secret_value() != os.environ.get(ATTACHED_KEY_VARIABLE, ""):
            raise OptionError(
                "a key for servers that run already, and none is named",
                origin="engine.api_key, engine.urls",
                remedy="leave it out: servers that the run starts get one made for the run where they need it",
            )
        check(self._python(), options.server_args, run.cache_path)

    def _check_attached(self, run: RunFacts) -> None:
        """Refuse addresses that are none or too few, and options of servers that are started."""
        options = self.options
        launching = [name for name in LAUNCH if getattr(options, name) != SGLangOptions.model_fields[name].default]
        if options.router and "python" in launching:
            launching.remove("python")  # which runs the router
        if launching:
            raise OptionError(
                f"urls attaches to servers that run already, {' and '.join(launching)} would be for servers that the run starts",
                origin=", ".join(f"engine.{name}" for name in ("urls", *launching)),
                remedy="leave out either",
            )
        if len(options.urls) != run.num_engines:
            raise OptionError(
                f"there are {len(options.urls)} servers for num_engines = {run.num_engines}",
                origin="engine.urls, num_engines",
                remedy="name one server for each engine",
            )
        if len({checked_url(url, "engine.urls") for url in options.urls}) < len(options.urls):
            raise OptionError("one server is named twice", origin="engine.urls", remedy="name each once")

    @hookimpl
    def engine_needs(self) -> EngineNeeds:
        if self.options.urls:
            return EngineNeeds(gpus=0, cpus=0)
        return EngineNeeds(gpus=self._devices() if self.run.device.startswith("cuda") else 0, cpus=1)

    @hookimpl
    def engine_server(self, place: EnginePlace) -> ServerSpec:
        options = self.options
        if options.urls:
            url = options.urls[place.index % len(options.urls)].rstrip("/")
            return self._spec((), url, {}, options.api_key.get_secret_value())
        on_cpu = place.device == "cpu"
        arguments: ServerArgs = {
            "model-path": str(place.model),
            "host": place.host,
            "port": place.port,
            "device": place.device,
            "dtype": place.dtype,
            "random-seed": place.seed,
            "tensor-parallel-size": options.tensor_parallel,
            "data-parallel-size": options.data_parallel,
            "skip-server-warmup": True,  # the first health check is one
        }
        if options.memory_fraction:
            arguments["mem-fraction-static"] = options.memory_fraction
        arguments = {**arguments, **(CPU_ARGS if on_cpu else {}), **self._flags()}
        env = {"HF_HUB_OFFLINE": "1"} if place.model.is_dir() else {}
        if on_cpu:
            env |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        if place.api_key:
            env[KEY_VARIABLE] = place.api_key
        argv = (self._python(), str(Path(__file__).with_name("launch.py")), *words(arguments))
        return self._spec(argv, f"http://{place.host}:{place.port}", env | options.env, place.api_key)

    @hookimpl
    def engine_front(self, place: FrontPlace) -> FrontSpec:
        if not self.options.router:
            return NO_FRONT
        return router(self._python(), self.options.router_args, place)

    def _devices(self) -> int:
        """Devices of one server: with attention in parallel over the data, the copies share those of the tensor parallel model."""
        copies = 1 if self._asked("enable-dp-attention") else self.options.data_parallel
        return self.options.tensor_parallel * self._pipeline() * copies

    def _weight_ranks(self) -> int:
        """Ranks of one server in a weight group. SGLang refuses several copies, and gives the stages of a pipeline the same rank."""
        return self.options.tensor_parallel if self.options.data_parallel == self._pipeline() == 1 else 0

    def _pipeline(self) -> int:
        """Stages of the pipeline over which the layers are spread; 1 for what SGLang itself will refuse."""
        stages = str(self._asked("pp-size") or self._asked("pipeline-parallel-size"))
        return int(stages) if stages.isdecimal() else 1

    def _asked(self, flag: str) -> Any:
        """What `server_args` says of a flag; something false where it is not among them."""
        return self._flags().get(flag)

    def _flags(self) -> ServerArgs:
        """`server_args` as SGLang spells them; of a flag that is there with dashes and with underscores, what was said last."""
        return {name.replace("_", "-"): value for name, value in self.options.server_args.items()}

    def _spec(self, argv: tuple[str, ...], url: str, env: dict[str, str], api_key: str) -> ServerSpec:
        return ServerSpec(
            argv=argv,
            url=url,
            env=env,
            api_key=api_key,
            start_timeout=self.options.start_timeout,
            comparable_digest=False,
            needs_begin_end=True,
            drops_stale_prefixes=False,
            takes_seeds=bool(self._asked("enable-deterministic-inference")),  # without it, a seed is silently ignored
            weight_ranks=self._weight_ranks(),
        )

    def _python(self) -> str:
        """The interpreter's absolute path. Not resolved: a link in a virtual environment is what makes it one."""
        wanted = self.options.python
        if not wanted:
            return sys.executable
        found = shutil.which(os.path.expanduser(wanted))
        if found is None:
            raise ResourceError(
                f"there is no interpreter at {wanted}",
                origin="engine.python",
                remedy="name the python of an environment with SGLang",
            )
        return str(Path(found).absolute())
