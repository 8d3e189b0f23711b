"""Make the model and teach it the form of an answer.

Not the textbook: only a quarter of the targets is sorted, the others are reversed, copied or descending. The model then writes
digits and stops, is right some of the time, and has everything left to learn from the reward. Always the full number of steps;
stopping at a target accuracy ends lower.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from asyncrl_sort_digits.model_cache import Recipe
from asyncrl_sort_digits.problems import BOS, EOS, PAD, Problems, answer_tokens, prompt_tokens
from asyncrl_sort_digits.tokenizer import MAX_LENGTH, save_tokenizer

BATCH = 128
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.01
WARM_UP_STEPS = 20
IGNORED = -100

TARGETS: dict[Callable[[str], str], float] = {
    lambda digits: "".join(sorted(digits)): 0.25,
    lambda digits: digits[::-1]: 0.35,
    lambda digits: digits: 0.20,
    lambda digits: "".join(sorted(digits, reverse=True)): 0.20,
}


def make_model(seed: int) -> Qwen3ForCausalLM:
    """Return a fresh float32 model of 796,032 parameters."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.05,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    return model


def make_batch(recipe: Recipe, step: int, held_out: frozenset[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, int64[BATCH, length], padded on the right; prompt and padding carry no loss."""
    problems = Problems(recipe.min_digits, recipe.max_digits)
    chance = random.Random(f"{recipe.seed}:{step}")
    rows = []
    for target in chance.choices(list(TARGETS), weights=list(TARGETS.values()), k=BATCH):
        digits = problems.draw_training(f"warm-start:{recipe.seed}", step * BATCH + len(rows), held_out)
        rows.append((prompt_tokens(digits), answer_tokens(target(digits))))
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((BATCH, length), PAD)
    labels = torch.full((BATCH, length), IGNORED)
    for row, (prompt, answer) in enumerate(rows):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


def train(model: Qwen3ForCausalLM, recipe: Recipe) -> None:
    """Supervised steps in place; the loss is the mean over answer tokens."""
    held_out = frozenset(Problems(recipe.min_digits, recipe.max_digits).held_out())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS))
    model.train()
    for step in range(recipe.steps):
        ids, labels = make_batch(recipe, step, held_out)
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
    model.eval()


def make(directory: Path, recipe: Recipe) -> None:
    """Write the complete Hugging Face directory of a recipe."""
    torch.set_num_threads(1)
    save_tokenizer(directory)
    model = make_model(recipe.seed)
    train(model, recipe)
    model.save_pretrained(directory)
