"""Between text and tokens: prompts through the chat template, completions back to text without hiding anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from asyncrl import OptionError
from numpy.typing import NDArray

from asyncrl_jsonl_task.rows import Message, Row

UNKNOWN = "\ufffd"
"""Stands for a token id that no text maps to; a decoder would leave it out, and pay for a wrong answer."""


TEMPLATE_TOKENS = 512
"""More than a chat template with a short system prompt adds."""


def most_tokens(row: Row) -> int:
    """Return a number that the tokens of a row's prompt stay below: no tokenizer makes more tokens than bytes."""
    return len(json.dumps(row.prompt).encode()) + TEMPLATE_TOKENS


def context_length(model: Path) -> int:
    """Return the longest sequence the model takes, in tokens; a very large number when its config does not say."""
    config = json.loads((model / "config.json").read_text())
    return int((config.get("text_config") or config).get("max_position_embeddings") or 2**31)


class Text:
    """The tokenizer of a model directory, as the task uses it. Runs no code from the directory.

    Args:
        model: Hugging Face directory.
        chat_template: whether to apply the template if there is one.
        template_arguments: given to the template beside the messages.
        system_prompt: system message for prompts that bring none; '' for none.
    """

    def __init__(self, model: Path, *, chat_template: bool, template_arguments: Mapping[str, Any], system_prompt: str) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False, local_files_only=True)
        except ValueError as cause:
            if "trust_remote_code" not in str(cause):
                raise
            raise OptionError(
                f"the tokenizer at {model} needs code of its own, which is never run: trust_remote_code is off", origin="model"
            ) from None
        self._use_template = chat_template and bool(self._tokenizer.chat_template)
        self._template_arguments = dict(template_arguments)
        self._system_prompt = system_prompt
        self._known = frozenset(self._tokenizer.get_vocab().values())
        self._stops = stop_tokens(model) | {self._tokenizer.eos_token_id}

    def prompt_tokens(self, row: Row) -> NDArray[np.int32]:
        """Return int32[n]. Raises `OptionError` when the row has messages and there is no template for them."""
        if not self._use_template:
            if not isinstance(row.prompt, str):
                raise OptionError(
                    f"{row.source}: the prompt is a list of messages, and no chat template is in use", origin="model"
                )
            return np.array(self._tokenizer(row.prompt)["input_ids"], np.int32)
        messages: Sequence[Message] = [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else row.prompt
        if self._system_prompt and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self._system_prompt}, *messages]
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **self._template_arguments
        )
        return np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)  # the template wrote them

    def completion(self, token_ids: Sequence[int]) -> str:
        """Return the text of a completion: without the stop token at its end, with every other special token spelled out."""
        ids = list(token_ids)
        if ids and ids[-1] in self._stops:
            ids.pop()
        if self._known.issuperset(ids):
            return self._decode(ids)
        parts: list[list[int]] = [[]]
        for token in ids:
            if token in self._known:
                parts[-1].append(token)
            else:
                parts.append([])
        return UNKNOWN.join(self._decode(part) for part in parts)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def stop_tokens(model: Path) -> frozenset[int]:
    """Return the token ids at which the model of a directory stops by itself."""
    for name in ("generation_config.json", "config.json"):
        stops = _read_json(model / name).get("eos_token_id")
        if stops is not None:
            return frozenset(stops if isinstance(stops, list) else [stops])
    return frozenset()


def has_chat_template(model: Path) -> bool:
    """Whether a model directory has a chat template, found without loading its tokenizer."""
    if (model / "chat_template.jinja").is_file() or (model / "chat_template.json").is_file():
        return True
    return bool(_read_json(model / "tokenizer_config.json").get("chat_template"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
