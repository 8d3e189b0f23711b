"""The policy's weights under the names that they have on disk, which are those that engines know; every rank helps to gather.

In memory the experts of a layer are one tensor, on disk each is one of its own; what is published is cut from the gathered tensor, and no
model is ever held twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from asyncrl import DataError
from safetensors import safe_open
from torch import Tensor, nn

from asyncrl_fsdp.distributed import whole

_EXPERTS = re.compile(r"(?P<layer>.*\.experts)\.(?P<kind>gate_up_proj|down_proj)")
_SINGLE = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


class Weights:
    """Names, shapes and tensors as they are published.

    Args:
        model: the Hugging Face model, sharded or not; tied parameters count once.
        source: the directory it was loaded from.

    Attributes:
        shapes: of every tensor by its name on disk, in the order in which they are published.

    Raises:
        DataError: `source` stores them under names that are not known here, so no engine could follow.
    """

    def __init__(self, model: nn.Module, source: Path) -> None:
        stored = _stored_names(source)
        self._model = model
        self._owners: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._split: set[str] = set()
        for name, parameter in model.named_parameters():
            if name not in stored and _EXPERTS.fullmatch(name):
                self._split.add(name)
            for own, part in self._parts(name, torch.empty(parameter.shape, device="meta")):
                self._owners[own] = name
                self.shapes[own] = tuple(part.shape)
        _check(self.shapes, stored, source)

    def whole(self, dtype: torch.dtype, parameters: Iterable[tuple[str, Tensor]] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor whole and in `dtype`, one parameter at a time, of the model or of a copy of its `parameters`; collective."""
        for name, parameter in self._model.named_parameters() if parameters is None else parameters:
            yield from self._parts(name, whole(parameter).to(dtype))

    def some(self, names: Sequence[str], dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield tensors whole, contiguous and in `dtype`, in the order of their names, one parameter at a time; collective."""
        parameters = dict(self._model.named_parameters())
        owner = ""
        parts: dict[str, Tensor] = {}
        for name in names:
            if self._owners[name] != owner:
                owner, parts = self._owners[name], {}
                parts = dict(self._parts(owner, whole(parameters[owner])))
            yield parts[name].to(dtype).contiguous()

    def _parts(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Cut a parameter into what is on disk: itself, or its experts. [experts, 2 x inner, hidden] holds gate above up."""
        matched = _EXPERTS.fullmatch(name)
        if name not in self._split or matched is None:
            yield name, tensor
            return
        kinds = _SINGLE[matched["kind"]]
        for number, expert in enumerate(tensor.unbind(0)):
            for kind, part in zip(kinds, expert.chunk(len(kinds), 0), strict=True):
                yield f"{matched['layer']}.{number}.{kind}.weight", part


def _stored_names(source: Path) -> dict[str, Path]:
    """Return the file in which each tensor of a directory is; empty where the directory says nothing."""
    index, single = source / "model.safetensors.index.json", source / "model.safetensors"
    if index.is_file():
        return {name: source / file for name, file in json.loads(index.read_bytes())["weight_map"].items()}
    if single.is_file():
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    return {}


def _check(shapes: dict[str, tuple[int, ...]], stored: dict[str, Path], source: Path) -> None:
    if not stored:
        return
    wrong = next((f"it has no {name}" for name in sorted(shapes.keys() - stored.keys())), "")
    if not wrong:
        by_file: dict[Path, list[str]] = {}
        for name in shapes:
            by_file.setdefault(stored[name], []).append(name)
        for path, names in by_file.items():
            with safe_open(path, framework="pt") as file:
                for name in names:
                    kept = tuple(file.get_slice(name).get_shape())
                    if kept != shapes[name]:
                        wrong = f"{name} is {list(kept)} there and {list(shapes[name])} in the model"
    if wrong:
        raise DataError(
            f"{source} stores its weights under other names than the loaded model uses ({wrong}); engines could not follow this trainer",
            origin="model",
        )
