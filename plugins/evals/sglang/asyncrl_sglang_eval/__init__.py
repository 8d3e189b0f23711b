"""Evaluates on a server outside the cluster's placement: launched beside the controller, or running already."""

from __future__ import annotations

import os
import shutil

from asyncrl import (
    Checkpoint,
    EngineSet,
    EvalPlugin,
    EvalResult,
    EvalSets,
    Launch,
    OptionError,
    PluginOptions,
    RunFacts,
    checked_url,
    hookimpl,
)
from pydantic import Field, SecretStr

KEY_VARIABLE = "ASYNCRL_EVAL_API_KEY"
LAUNCH = ("devices", "port", "server_args", "python")


class SGLangOptions(PluginOptions):
    """Options of the external server. With `url` nothing is launched."""

    url: tuple[str, ...] = Field((), description="Addresses of running servers to attach to, such as http://10.0.0.7:30000.")
    devices: str = Field("", description="What CUDA_VISIBLE_DEVICES is for the launched server; empty leaves it alone.")
    port: int = Field(0, ge=0, le=65535, description="Port of the launched server; 0 takes a free one.")
    server_args: tuple[str, ...] = Field((), description="Arguments put behind the launched server's own.")
    python: str = Field(
        "", description="Interpreter that launches the server, such as that of another environment; empty is the engine's choice."
    )
    api_key: SecretStr = Field(
        default_factory=lambda: SecretStr(os.environ.get(KEY_VARIABLE, "")),
        description=f"Key that the servers at `url` require; unset, what the environment variable {KEY_VARIABLE} holds.",
    )
    engine: str = Field("", description="Engine plugin whose server it is; empty is the run's own.")


class SGLang(EvalPlugin):
    """Loads each snapshot into its servers and evaluates there, while rollout and training go on."""

    hook_api = 1
    Options = SGLangOptions
    options: SGLangOptions

    @hookimpl
    def check_run(self, run: RunFacts) -> None:
        """Refuse what can't be meant: to launch and to attach, a URL or an interpreter that is none, one server twice."""
        options = self.options
        if not options.url:
            if options.python and not shutil.which(options.python):  # it is launched on this machine
                raise OptionError(
                    f"{options.python!r} is no program that can be run",
                    origin="eval.python",
                    remedy="such as /opt/sglang/bin/python",
                )
            if any(word.partition("=")[0] in ("--api-key", "--admin-api-key") for word in options.server_args):
                raise OptionError(
                    "a key on a command line is seen by every user of the machine",
                    origin="eval.server_args",
                    remedy="leave it out: with bind, one is made for the run",
                )
            return
        if launch := [name for name in LAUNCH if getattr(options, name) != SGLangOptions.model_fields[name].default]:
            raise OptionError(
                f"url attaches to a server that runs already, {' and '.join(launch)} would launch one",
                origin=", ".join(f"eval.{name}" for name in ("url", *launch)),
                remedy="leave out either",
            )
        if len({checked_url(url, "eval.url") for url in options.url}) < len(options.url):
            raise OptionError("one server is named twice", origin="eval.url", remedy="name each once")

    @hookimpl
    def eval_engines(self, rollout: EngineSet) -> EngineSet:
        """Attach, or launch one server with the rollout engines' options."""
        options = self.options
        if options.engine not in ("", rollout.engine):
            rollout = EngineSet(options.engine, {"dtype": rollout.options["dtype"]}, 1)
        if options.url:
            return rollout.attached(options.url, options.api_key.get_secret_value())
        return rollout.launched(Launch(options.devices, options.port, options.server_args, options.python))

    @hookimpl
    async def evaluate_checkpoint(self, checkpoint: Checkpoint, sets: EvalSets) -> EvalResult:
        """Bring every server to the checkpoint and run every set."""
        await sets.pin(checkpoint)
        return await sets.run(sets.engines)
