"""A model that brings code of its own, which leaves a file behind when it is run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

CODE = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
class PlantedConfig(PretrainedConfig):
    model_type = "planted"
class Planted(PreTrainedModel):
    config_class = PlantedConfig
class PlantedTokenizer(PreTrainedTokenizerFast):
    pass
"""


def plant(source: Path, target: Path) -> Path:
    """Copy a model, give it code of its own, and return the file that its code would leave."""
    shutil.copytree(source, target)
    marker = target.parent / "the-code-was-run"
    (target / "planted.py").write_text(CODE.format(marker=str(marker)))
    kinds = {"AutoConfig": "planted.PlantedConfig", "AutoModelForCausalLM": "planted.Planted"}
    tokenizer = {"AutoTokenizer": ["planted.PlantedTokenizer", "planted.PlantedTokenizer"]}
    for name, entries in (
        ("config.json", {"model_type": "planted", "architectures": ["Planted"], "auto_map": kinds}),
        ("tokenizer_config.json", {"tokenizer_class": "PlantedTokenizer", "auto_map": tokenizer}),
    ):
        if (target / name).exists():
            (target / name).write_text(json.dumps({**json.loads((target / name).read_text()), **entries}))
    return marker
