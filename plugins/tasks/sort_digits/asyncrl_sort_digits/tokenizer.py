"""The character tokenizer, as an ordinary Hugging Face fast tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asyncrl_sort_digits.problems import BOS, EOS, PAD, TOKEN_OF

MAX_LENGTH = 256


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer: one token a character, BOS not added by itself, an error for a character it lacks."""
    special = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS}
    tokenizer = Tokenizer(models.WordLevel(vocab={**special, **TOKEN_OF}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(directory: Path) -> None:
    """Write the tokenizer's files under the class name that every release of transformers knows."""
    make_tokenizer().save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}, indent=2))
