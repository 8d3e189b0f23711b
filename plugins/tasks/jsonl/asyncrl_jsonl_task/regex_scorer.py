"""The regex scorer, run in scoring processes: a pattern may be catastrophic on a completion, and nothing inside could stop it."""

from __future__ import annotations

import re
from collections import deque


def score(pattern: str, completion: str, answer: str) -> bool:
    """Whether the last match of `pattern`, or its first group if it has one, is the answer."""
    last = deque(re.finditer(pattern, completion), maxlen=1)
    if not last:
        return False
    found = last[0].group(1) if last[0].re.groups else last[0].group()
    return found is not None and found.strip() == answer
