"""What breaks in the field: which report is which, and that the scenarios beside this file cover each, by its number in their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPORTS = {
    1: "a sample is filed under the version that was served when it ended",
    2: "the bound is one larger than it says",
    3: "the staleness of what was trained counts what was refused",
    4: "a bound of zero stops the run",
    5: "on-policy is one step off-policy",
    6: "dropping at a small bound loses the long ones",
    7: "groups beyond the batch are lost",
    8: "a prompt that is issued again carries old tokens",
    9: "one failed sample loses its whole group",
    10: "an exception is swallowed, or ends the producer unnoticed",
    11: "a request never returns",
    12: "an engine answers with errors, or breaks off in the middle",
    13: "a group has another size than group_size",
    14: "one straggler holds a batch",
    15: "the trainer dies while the producer waits",
    16: "the producer dies while the trainer waits",
}
"""Which report is which, by the number that its scenarios have in their names."""

FILES = Path(__file__).parent.glob("test_field_reports_*.py")
COVERED = {int(number) for file in FILES for number in re.findall(r"^def test_(\d\d)_", file.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("number", sorted(COVERED | set(REPORTS)))
def test_each_report_has_a_scenario_and_each_scenario_its_report(number: int) -> None:
    assert number in COVERED, f"no test_{number:02}_… says that {REPORTS[number]}"
    assert number in REPORTS, f"test_{number:02}_… is for a report that is not listed"
