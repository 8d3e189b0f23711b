"""A real run as an observer sees it: which hooks are called, and in which process."""

from __future__ import annotations

import json
import os
from pathlib import Path

from asyncrl.hook_checks import implemented, wrapped
from asyncrl.hookspecs import CALLED_IN
from fake_distributions import install
from watcher_plugin import Watcher


def test_every_hook_is_called_in_the_processes_that_the_hooks_page_names_also_in_a_run_that_fails(start, tmp_path) -> None:
    install(tmp_path / "site", "watchers", {"asyncrl.observers": {"watcher": "watcher_plugin:Watcher"}})
    path = os.pathsep.join([str(tmp_path / "site"), str(Path(__file__).parents[1] / "support")])
    flags = "--observers watcher --steps 4 --save-interval 1 --eval-interval 1 --task.num-eval 16"
    run = start(*flags.split(), env={"PYTHONPATH": path})

    assert run.wait() == 3, run.output
    assert (
        "observers plugin 'watcher' (watchers 1.0) failed in score_group: ValueError: the watcher has seen enough" in run.output
    )

    calls: dict[int, set[str]] = {}
    for line in (run.directory.parent / "watched.jsonl").read_text().splitlines():
        pid, hook = json.loads(line)
        calls.setdefault(pid, set()).add(hook)
    watched = {*implemented(Watcher), *wrapped(Watcher)}
    wanted = {process: watched & set(hooks) for process, hooks in CALLED_IN.items()}
    del wanted["evaluator"]  # the run's eval backend uses the rollout engines
    wanted["controller"] -= {"engine_server"}  # asked there only for evaluations on other engines
    assert calls.pop(run.process.pid) == wanted.pop("controller")
    assert sorted(calls.values(), key=len) == sorted(wanted.values(), key=len)
    assert run.left_behind() == []
