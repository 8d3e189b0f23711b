"""How an eval set is written: a path, or a table with what is different for this set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from asyncrl import SamplingParams
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
"""Becomes part of metric names."""


def _top_k(value: Any) -> Any:
    if value == 0:
        raise ValueError("top_k 0 would leave no token to sample; -1 is off")
    return value


TopK = Annotated[int, Field(ge=-1), BeforeValidator(_top_k)]


class EvalFile(BaseModel):
    """One set. What is None is as the `eval_…` option of the same name says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    path: Path
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: TopK | None = None
    samples_per_prompt: int | None = Field(None, ge=1)
    max_new_tokens: int | None = Field(None, ge=1)
    limit: int | None = Field(None, ge=1)
    pass_reward: float | None = None


def _form(value: Any) -> str:
    return "table" if isinstance(value, dict | EvalFile) else "path"


Written: TypeAlias = Annotated[
    Annotated[Path, Tag("path")] | Annotated[EvalFile, Tag("table")],
    Discriminator(_form),
]


class EvalSettings(BaseModel):
    """One set with every setting known. `max_new_tokens` None is the run's, `limit` None every prompt."""

    path: Path
    temperature: float
    top_p: float
    top_k: int
    samples_per_prompt: int
    max_new_tokens: int | None
    limit: int | None
    pass_reward: float

    def params(self, run_max_new_tokens: int) -> SamplingParams:
        return SamplingParams(self.max_new_tokens or run_max_new_tokens, self.temperature, self.top_p, self.top_k)
