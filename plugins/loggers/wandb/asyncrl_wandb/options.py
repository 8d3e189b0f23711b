"""Options of the `wandb` logger. The API key is not among them: it is W&B's own affair (`wandb login`, WANDB_API_KEY)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from asyncrl import PluginOptions
from pydantic import Field


class WandbOptions(PluginOptions):
    """What is not set here is W&B's own default, as its environment variables give it."""

    project: str | None = Field(
        None, min_length=1, max_length=128, pattern=r"^[^/\\#?%:]+$", description="W&B project; unset, WANDB_PROJECT or asyncrl."
    )
    entity: str | None = Field(None, description="User or team that owns the project; unset, WANDB_ENTITY or the key's own.")
    group: str | None = Field(None, description="W&B group, which puts several runs together.")
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field((), description="W&B tags.")
    run_name: str = Field("", description="Name in W&B; empty is the run's own.")
    mode: Literal["online", "offline", "disabled"] | None = Field(
        None,
        description="online uploads, offline writes files for `wandb sync`, disabled does nothing; unset, WANDB_MODE or online.",
    )
    run_id: str = Field(
        "", pattern=r"^[\w-]*$", max_length=64, description="Id of a W&B run to go on with; empty makes a new one."
    )
    dir: Path | None = Field(None, description="Where W&B's folder `wandb` is made; unset, the run's directory.")
    log_samples: bool = Field(True, description="Whether completions of eval points are logged as a table, eval/samples.")
    queue_size: int = Field(2000, ge=1, description="Records that may wait for W&B; more are dropped and counted.")
    start_seconds: float = Field(
        60.0, gt=0, description="Seconds in which W&B's server must answer at the start; else the run is written offline."
    )
    finish_seconds: float = Field(60.0, gt=0, description="Seconds that W&B gets at the run's end to take what is left.")

    def resolved_mode(self) -> str:
        """Return ``online``, ``offline`` or ``disabled``."""
        mode = self.mode or os.environ.get("WANDB_MODE") or "online"
        return {"dryrun": "offline", "run": "online"}.get(mode, mode)
