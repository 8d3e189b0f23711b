"""New weights for a served model: read from a directory or received from a group, checked as a whole, then copied in at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from asyncrl.training.digest import weights_digest
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from asyncrl_torch.requests import BadRequest

DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}


class ModelWeights:
    """The weights of a model by their Hugging Face names."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        # tied weights are known under each of their names, and are one tensor
        self._tensors: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        persistent = model.state_dict().keys()
        self._tensors.update((name, buffer) for name, buffer in model.named_buffers() if name in persistent)
        self._parameters = [name for name, _ in model.named_parameters()]

    def digest(self) -> str:
        """Return the checksum that a trainer computes alike for equal weights."""
        return weights_digest(self._model.named_parameters())

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Raise `BadRequest` unless the model has a tensor of this name and shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise BadRequest(f"the model has no weight named {name!r}")
        if tuple(tensor.shape) != tuple(shape):
            raise BadRequest(f"weight {name!r} has shape {tuple(shape)}, the model's has {tuple(tensor.shape)}")

    @torch.no_grad()
    def apply(self, new: Mapping[str, torch.Tensor]) -> None:
        """Copy checked tensors into the model."""
        for name, tensor in new.items():
            self._tensors[name].copy_(tensor)

    def read_directory(self, path: Path) -> dict[str, torch.Tensor]:
        """Return all weights of a Hugging Face directory, checked against the model. Raises `BadRequest`; changes nothing."""
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
        if not files:
            raise BadRequest(f"no Hugging Face directory with safetensors at {path}")
        try:
            new = _read_files(files)
            if not new.keys() <= self._tensors.keys():
                new = self._convert(path)
        except (OSError, ValueError, KeyError, RuntimeError) as cause:
            raise BadRequest(f"the weights at {path} can't be read: {cause}") from cause
        except Exception as cause:  # safetensors raises a class of its own that derives from Exception
            raise BadRequest(f"the weights at {path} can't be read: {type(cause).__name__}: {cause}") from cause
        for name, tensor in new.items():
            self.check(name, tensor.shape)
        if lacking := self.lacking(new):
            raise BadRequest(f"the weights at {path} are incomplete: {lacking}")
        return new

    def lacking(self, new: Iterable[str]) -> str:
        """Return which of the model's weights are not among these names, in words; '' when none is lacking."""
        given = {id(self._tensors[name]) for name in new}
        missing = [name for name in self._parameters if id(self._tensors[name]) not in given]
        return f"{len(missing)} of {len(self._parameters)} weights are missing, such as {missing[0]!r}" if missing else ""

    def _convert(self, path: Path) -> dict[str, torch.Tensor]:
        """Read a checkpoint whose names differ from the model's, the way transformers does."""
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=self._model.dtype, trust_remote_code=False, local_files_only=True, use_safetensors=True
        )
        return dict(model.named_parameters())


def _read_files(files: Iterable[Path]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 (not a mapping)
                tensors[name] = content.get_tensor(name)
    return tensors
