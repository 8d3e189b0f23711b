"""The fault matrix in `docs/faults.md`, from the table that the tests run; the rest of the page is written by hand."""

from __future__ import annotations

import re
import sys

from generator.markdown import table
from generator.plugins import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))

from faults import CASES

BLOCK = re.compile(r"(<!-- generated: faults -->\n).*?(<!-- end -->)", re.DOTALL)
ENDS = {0: "goes on", 1: "ends, 1", 3: "ends, 3", 130: "ends, 130"}


def faults_filled(text: str) -> str:
    """Return the page with its table written again."""
    rows = [
        (fault.fails, fault.happens, fault.deadline, ENDS[case.exit_code], f"`{case.name}`")
        for case in CASES
        for fault in case.faults
    ]
    lines = table(("what is made to fail", "what happens", "within", "the run", "shown by"), rows)
    return BLOCK.sub(lambda found: f"{found[1]}{chr(10).join(lines).strip()}\n{found[2]}", text)
