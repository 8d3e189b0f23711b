"""What is looked at before anything starts: device, ports, model, space. Each refuses with one error that names the option."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from asyncrl.authoring import RunFacts
from asyncrl.errors import OptionError, ResourceError
from asyncrl.host import Host
from asyncrl.run_options import RunOptions
from asyncrl.training.publication import check_space

STATE_FACTOR = 4
"""Bytes of a checkpoint over bytes of the model: weights and two moments in float32, and the exported model."""


def resolve_device(wanted: str) -> str:
    """Return ``cuda`` where there is a GPU and ``cpu`` where not, for ``auto``."""
    if wanted != "auto":
        return wanted
    return "cuda" if Path("/dev/nvidia0").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != "" else "cpu"


def require_device(core: RunOptions, facts: RunFacts) -> None:
    """Refuse GPUs that a private cluster on this machine can't have."""
    if facts.device == "cuda" and not core.ray_address and not list(Path("/dev").glob("nvidia[0-9]*")):
        raise ResourceError("this machine has no GPU", origin="device", remedy="use --device cpu, or auto")


def require_bind(core: RunOptions) -> None:
    """Refuse an address to `bind` that this machine, on which a private cluster runs everything, has not."""
    if core.ray_address:
        return
    with socket.socket() as probe:
        try:
            probe.bind((core.bind, 0))
        except OSError as cause:
            raise ResourceError(
                f"{core.bind} is no address of this machine", origin="bind", remedy="name one that is, or 0.0.0.0 for all of them"
            ) from cause


def require_ports(core: RunOptions) -> None:
    """Refuse ports for the engines that another process has."""
    for index in range(core.num_engines if core.base_port else 0):
        require_port(core.bind, core.base_port + index, origin="base_port")


def find_model(host: Host, facts: RunFacts) -> Path:
    """Return the model to train: the one that was asked for, or the task's own, which may have to be made first."""
    if facts.model:
        return Path(facts.model)
    if host.has("task_model"):
        model: Path = host.one("task_model")(cache_dir=facts.cache_path)
        return model
    raise OptionError(f"{host.active('task')} has no model of its own", origin="model", remedy="name a Hugging Face directory")


def read_vocab_size(model: Path) -> int:
    """Return the vocabulary size in a model's config. Raises `OptionError` where there is none."""
    if not (model / "config.json").is_file():
        raise OptionError(
            f"{model} is no model: it has no file config.json", origin="model", remedy="name a Hugging Face model directory"
        )
    try:
        config = json.loads((model / "config.json").read_text())
        return int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as cause:
        raise OptionError(f"{model / 'config.json'} says no vocab_size: {cause!r}", origin="model") from cause


def model_bytes(model: Path) -> int:
    """Return the size of a model's weights."""
    return sum(path.stat().st_size for path in model.glob("*.safetensors"))


def require_space(core: RunOptions, model: Path, there: int = 0) -> None:
    """Refuse file systems that are too full for a publication and for the checkpoints that are kept, `there` of which exist already."""
    size = model_bytes(model)
    if core.publish_method == "disk":
        if not Path(core.publish_dir).is_dir():
            raise OptionError(f"{core.publish_dir} is no directory", origin="publish_dir", remedy="name one that exists")
        check_space(Path(core.publish_dir), size, origin="publish_dir")
    kept = max(1, core.keep_checkpoints) + 1 if core.save_interval else 1
    if core.eval_interval and core.eval_snapshots == "checkpoints":
        kept += core.eval_max_in_flight  # a checkpoint is kept as long as its evaluation is pending
    check_space(Path(core.runs_dir), size * STATE_FACTOR * max(1, kept - there), origin="runs_dir")


def require_port(host: str, port: int, *, origin: str) -> None:
    """Refuse a port that another process has."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as cause:
            raise ResourceError(
                f"port {port} on {host} can't be used: {cause.strerror}",
                origin=origin,
                remedy="choose another, or 0 for free ones",
            ) from cause
