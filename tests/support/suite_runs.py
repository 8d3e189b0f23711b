"""Runs the suites on broken plugins as their authors would: an installed distribution, a test module, pytest in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from asyncrl.plugins import SLOTS
from broken.breaking import Broken
from fake_distributions import install

SUPPORT = Path(__file__).parent
TIMEOUT = 280


@dataclass(frozen=True)
class Outcome:
    """What became of one rule: ``passed``, ``failed`` or ``skipped``, and what was said."""

    result: str
    said: str


Outcomes = dict[str, dict[str, Outcome]]
"""By plugin and rule."""


def run_suites(folder: Path, plugins: Mapping[str, Mapping[str, Broken]], *, without: str = "", examples: int = 30) -> Outcomes:
    """Run the suite of each slot on its plugins, whose names are all different.

    Args:
        folder: empty; gets the author's files.
        plugins: by slot and name.
        without: words of rules to leave out, as pytest's ``-k`` has them.
        examples: with how many cases each property is tried.
    """
    (folder / "jax.py").write_text("")
    points = {SLOTS[slot].group: {name: one.target for name, one in named.items()} for slot, named in plugins.items()}
    install(folder, "a-stranger", points)
    tests = author_tests(plugins, small_model(folder / "model"), examples)
    (folder / "test_broken.py").write_text(tests)
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "--junitxml=report.xml", "--rootdir", str(folder)]
    options += ["-k", f"not ({without})"] if without else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(SUPPORT)])}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_broken.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return read_report(folder / "report.xml", [name for named in plugins.values() for name in named])


def author_tests(plugins: Mapping[str, Mapping[str, Broken]], model: Path, examples: int) -> str:
    """The test module that the authors would have written."""
    lines = ["from asyncrl.testing import SUITES"]
    for slot, named in plugins.items():
        for name, one in named.items():
            declared: dict[str, Any] = {"plugin": name, "examples": examples}
            if slot in ("engine", "trainer"):
                declared["model"] = str(model)
            declared |= one.declared
            lines += ["", f"class Test{name}(SUITES[{slot!r}]):", *(f"    {key} = {value!r}" for key, value in declared.items())]
    return "\n".join(lines) + "\n"


def read_report(report: Path, names: list[str]) -> Outcomes:
    """Outcomes out of pytest's own report."""
    outcomes: Outcomes = {name: {} for name in names}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.get("classname", "").rpartition(".Test")[2]
        found = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if found is None:
            outcome = Outcome("passed", "")
        else:
            result = "skipped" if found.tag == "skipped" else "failed"
            outcome = Outcome(result, f"{found.get('message', '')}\n{found.text}")
        outcomes[name][case.get("name", "")] = outcome
    return outcomes


def small_model(folder: Path) -> Path:
    """A model directory with four weights."""
    folder.mkdir()
    header = json.dumps({"weights": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 64}))
    (folder / "tokenizer.json").write_text("{}")
    return folder
