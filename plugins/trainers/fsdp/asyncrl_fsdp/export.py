"""Writes the policy as an ordinary Hugging Face directory; every rank helps to gather, rank 0 writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from asyncrl import AsyncrlError, Exported
from asyncrl.errors import CheckpointError
from asyncrl.training.digest import digest_lines, tensor_line
from asyncrl.training.snapshots import mark_complete, mark_incomplete
from torch import Tensor

from asyncrl_fsdp.safetensors_stream import Layout, write_file
from asyncrl_fsdp.weights import Weights

SHARD_BYTES = 5 * 10**9
_COMPANIONS = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "*.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "*processor_config.json",
)
"""What else belongs to a model and does not change with training."""


class Exporter:
    """Writes exports of one model.

    Args:
        weights: of the model.
        source: the directory it was loaded from; tokenizer and generation config are copied from there.
        dtype: of the weights as written.
    """

    def __init__(self, weights: Weights, source: Path, dtype: torch.dtype) -> None:
        self._weights = weights
        self._dtype = dtype
        self.layout = Layout.of(weights.shapes, dtype, SHARD_BYTES)
        self._companions = sorted({path for pattern in _COMPANIONS for path in source.glob(pattern) if path.is_file()})
        config = json.loads((source / "config.json").read_bytes())
        config.pop("torch_dtype", None)  # the former name of `dtype`
        self._config = json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}, indent=2).encode()

    def export(
        self,
        directory: Path,
        parameters: Iterable[tuple[str, Tensor]] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> Exported:
        """Write a complete directory, its completion marker last; collective. Raises `CheckpointError` on every rank.

        Args:
            parameters: of a copy of the model, in the model's order; None is the model itself.
            group: over which ranks agree on how it went; None is the trainer's own.
        """
        lines: list[str] = []
        failure: AsyncrlError | None = None
        tensors = self._gathered(lines, parameters)
        if dist.get_rank() == 0:
            try:
                self._write(directory, tensors)
            except (OSError, AsyncrlError) as cause:
                failure = _as_error(cause, directory)
        for _ in tensors:  # whatever happened on rank 0, every gather has to be answered
            pass
        digest, failure = _agree(digest_lines(lines), failure, group)
        if failure is not None:
            raise failure
        return Exported(directory, self.layout.num_bytes, digest)

    def _gathered(self, lines: list[str], parameters: Iterable[tuple[str, Tensor]] | None) -> Iterator[Tensor]:
        for name, tensor in self._weights.whole(self._dtype, parameters):
            if dist.get_rank() == 0:
                lines.append(tensor_line(name, tensor))
            yield tensor

    def _write(self, directory: Path, tensors: Iterator[Tensor]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        mark_incomplete(directory)
        for stale in directory.glob("model*.safetensors*"):
            stale.unlink()
        free = shutil.disk_usage(directory).free
        if free < self.layout.num_bytes:
            raise CheckpointError(
                f"no space left on device: export to {directory} needs {self.layout.num_bytes:,} bytes, {free:,} are free"
            )
        for file, names in self.layout.files.items():
            write_file(directory / file, names, self._weights.shapes, self._dtype, tensors)
        if len(self.layout.files) > 1:
            (directory / "model.safetensors.index.json").write_bytes(self.layout.index())
        (directory / "config.json").write_bytes(self._config)
        for companion in self._companions:
            shutil.copyfile(companion, directory / companion.name)
        mark_complete(directory)


def _as_error(cause: OSError | AsyncrlError, directory: Path) -> AsyncrlError:
    return cause if isinstance(cause, AsyncrlError) else CheckpointError(f"export to {directory}: {cause.strerror or cause}")


def _agree(digest: str, failure: AsyncrlError | None, group: dist.ProcessGroup | None) -> tuple[str, AsyncrlError | None]:
    """Give every rank what rank 0 has, as text: torch would send objects as pickles."""
    if dist.get_world_size() == 1:
        return digest, failure
    told = json.dumps([digest, failure.message if failure else None]).encode()
    size = torch.tensor([len(told)])
    dist.broadcast(size, 0, group)
    data = torch.frombuffer(bytearray(told if dist.get_rank() == 0 else int(size)), dtype=torch.uint8)
    dist.broadcast(data, 0, group)
    if dist.get_rank() == 0:
        return digest, failure
    digest, message = json.loads(data.numpy().tobytes())
    return digest, CheckpointError(message) if message is not None else None
