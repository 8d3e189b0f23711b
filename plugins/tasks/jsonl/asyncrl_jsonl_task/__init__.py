"""Your own prompts and answers from JSON lines, scored by exact, regex or math."""

from __future__ import annotations

from asyncrl_jsonl_task.options import JsonLinesOptions
from asyncrl_jsonl_task.task import JsonLinesTask

__all__ = ["JsonLinesOptions", "JsonLinesTask"]
