"""Sort the digits: a task with a small model of its own that learns in a minute."""

from __future__ import annotations

from asyncrl_sort_digits.task import SortDigits, SortDigitsOptions

__all__ = ["SortDigits", "SortDigitsOptions"]
