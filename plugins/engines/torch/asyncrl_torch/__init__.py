"""Embedded engine: continuous batching for Hugging Face models behind SGLang's native API.

This module only describes the engine; the server process imports torch (`python -m asyncrl_torch.server`).
"""

from __future__ import annotations

import os
import sys

from asyncrl import EngineNeeds, EnginePlace, Plugin, PluginOptions, ServerSpec, hookimpl
from pydantic import Field

KEY_VARIABLE = "ASYNCRL_ENGINE_KEY"
"""Holds what requests must carry; unset, everybody may ask."""


class TorchEngineOptions(PluginOptions):
    """Options of the embedded engine."""

    threads: int = Field(1, ge=1, description="CPU threads of torch in each engine; more than one only pays on idle cores.")
    max_running: int = Field(256, ge=1, description="Requests that generate at the same time in one engine; others wait.")
    max_context: int = Field(0, ge=0, description="Longest prompt plus output in tokens; 0 stands for the model's own limit.")
    prefill_tokens: int = Field(4096, ge=1, description="Prompt tokens computed in one pass, so that decoding gets its turn.")
    prefix_entries: int = Field(256, ge=0, description="Prompts kept in the prefix cache; 0 turns it off.")
    prefix_tokens: int = Field(65536, ge=0, description="Tokens kept in the prefix cache over all its prompts.")
    weights_timeout: float = Field(120.0, gt=0, description="Seconds the engine waits for a weight group or a broadcast.")
    start_timeout: float = Field(120.0, gt=0, description="Seconds until the server must answer; large models load longer.")


class TorchEngine(Plugin):
    """Starts `asyncrl_torch.server`, one process an engine."""

    hook_api = 1
    Options = TorchEngineOptions
    options: TorchEngineOptions

    @hookimpl
    def engine_needs(self) -> EngineNeeds:
        return EngineNeeds(gpus=1 if self.run.device.startswith("cuda") else 0, cpus=1)

    @hookimpl
    def engine_server(self, place: EnginePlace) -> ServerSpec:
        options = self.options
        flags: dict[str, object] = {
            "--model": place.model,
            "--host": place.host,
            "--port": place.port,
            "--device": place.device,
            "--dtype": place.dtype,
            "--threads": options.threads,
            "--max-running": options.max_running,
            "--max-context": options.max_context,
            "--prefill-tokens": options.prefill_tokens,
            "--prefix-entries": options.prefix_entries,
            "--prefix-tokens": options.prefix_tokens,
            "--weights-timeout": options.weights_timeout,
            "--seed": place.seed,
            "--parent-pid": os.getpid(),
        }
        argv = [sys.executable, "-m", "asyncrl_torch.server"]
        for flag, value in flags.items():
            argv += [flag, str(value)]
        return ServerSpec(
            argv=tuple(argv),
            url=f"http://{place.host}:{place.port}",
            env={
                "OMP_NUM_THREADS": str(options.threads),
                "TOKENIZERS_PARALLELISM": "false",
                **({KEY_VARIABLE: place.api_key} if place.api_key else {}),
            },
            api_key=place.api_key,
            start_timeout=options.start_timeout,
            comparable_digest=True,
            needs_begin_end=True,
            drops_stale_prefixes=True,
            takes_seeds=True,
            takes_packed=True,
        )
