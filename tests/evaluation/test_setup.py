"""What of evaluation cannot work is refused before anything starts, with both options named."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from asyncrl.authoring import EvalPlugin, PluginOptions, RunFacts
from asyncrl.errors import OptionError, ResourceError
from asyncrl.evaluation.setup import blocks, check_options, check_staging, exports_snapshots, takes_snapshots
from asyncrl.run_options import RunOptions


class Elsewhere(EvalPlugin):
    """On snapshots, beside training."""

    name = "elsewhere"


class OnTheEngines(EvalPlugin):
    name = "on-the-engines"
    uses_rollout_engines = True
    needs_snapshot = False


def backend(kind: type[EvalPlugin] = Elsewhere) -> EvalPlugin:
    return kind(PluginOptions(), RunFacts(batch_size=1, group_size=1, max_concurrent_samples=1, steps=1))


@pytest.mark.parametrize(
    ("options", "origin", "words"),
    [
        (
            {"eval_interval": 4, "eval_snapshots": "checkpoints"},
            "eval_snapshots, save_interval",
            "there is no snapshot source for elsewhere: eval_snapshots = checkpoints with save_interval = 0",
        ),
        (
            {"eval_interval": 4, "eval_snapshots": "checkpoints", "save_interval": 3},
            "eval_interval, save_interval",
            "eval_interval = 4 is no multiple of save_interval = 3",
        ),
        (
            {"eval_interval": 5, "publish_interval": 2},
            "eval_interval, publish_interval",
            "eval_interval = 5 is no multiple of publish_interval",
        ),
        ({"eval_interval": 1, "publish_interval": 2}, "eval_interval, publish_interval", "eval_interval = 1 is no multiple"),
    ],
)
def test_intervals_under_which_a_point_would_have_no_weights_are_refused(
    options: dict[str, Any], origin: str, words: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(words)) as caught:
        check_options(RunOptions(**options), backend())
    assert caught.value.origin == origin and caught.value.exit_code == 2
    check_options(RunOptions(**options | {"eval_interval": 0}), backend())  # who does not evaluate may write what he likes


def test_the_remedy_names_values_that_would_do() -> None:
    with pytest.raises(OptionError) as caught:
        check_options(RunOptions(eval_interval=5, publish_interval=2), backend())
    assert caught.value.remedy == "use eval_interval = 4 or 6"
    with pytest.raises(OptionError) as caught:
        check_options(RunOptions(eval_interval=1, publish_interval=2), backend())
    assert caught.value.remedy == "use eval_interval = 2"


@pytest.mark.parametrize(
    "options",
    [
        {"eval_interval": 5, "publish_interval": 2, "eval_max_in_flight": 7, "eval_overflow": "skip"},
        {"eval_interval": 4, "eval_snapshots": "checkpoints"},
    ],
)
def test_a_backend_on_the_rollout_engines_needs_none_of_it(options: dict[str, Any]) -> None:
    check_options(RunOptions(**options), backend(OnTheEngines))


def test_what_a_backend_needs_is_asked_of_the_plugin_or_of_its_class() -> None:
    core = RunOptions(eval_interval=4)
    for kind in (backend(), Elsewhere):
        assert (blocks(kind), takes_snapshots(core, kind), exports_snapshots(core, kind)) == (False, True, True)
    for kind in (backend(OnTheEngines), OnTheEngines):
        assert (blocks(kind), takes_snapshots(core, kind), exports_snapshots(core, kind)) == (True, False, False)
    reuse = RunOptions(eval_interval=4, save_interval=2, eval_snapshots="checkpoints")
    assert takes_snapshots(reuse, backend()) and not exports_snapshots(reuse, backend())


def test_a_staging_directory_too_small_for_all_snapshots_at_once_is_refused_with_the_numbers(tmp_path: Path) -> None:
    model_bytes = shutil.disk_usage(tmp_path).free // 4  # four of them never fit beside what is written meanwhile
    core = RunOptions(eval_interval=4, staging_dir=tmp_path, publish_method="broadcast", eval_max_in_flight=3, keep_snapshots=2)
    with pytest.raises(ResourceError, match=r"MB free where [\d,.]+ MB are needed, for 5 snapshots of [\d,.]+ MB") as caught:
        check_staging(core, backend(), model_bytes)
    assert "eval_max_in_flight = 3 pending and keep_snapshots = 2 kept" in caught.value.message
    assert caught.value.origin == "staging_dir" and caught.value.exit_code == 2
    check_staging(core.model_copy(update={"eval_max_in_flight": 1, "keep_snapshots": 0}), backend(), model_bytes)
    check_staging(core, backend(OnTheEngines), model_bytes)
    check_staging(core.model_copy(update={"eval_interval": 0}), backend(), model_bytes)


def test_a_publication_in_the_same_place_needs_room_beside_the_snapshots(tmp_path: Path) -> None:
    core = RunOptions(eval_interval=4, staging_dir=tmp_path, publish_dir=tmp_path, eval_max_in_flight=2, keep_snapshots=0)
    with pytest.raises(ResourceError, match="beside a publication"):
        check_staging(core, backend(), shutil.disk_usage(tmp_path).free * 2 // 5)


def test_a_staging_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is no directory") as caught:
        check_staging(RunOptions(eval_interval=4, staging_dir=tmp_path / "absent"), backend(), 1)
    assert caught.value.origin == "staging_dir"


def test_a_staging_directory_in_which_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    core = RunOptions(eval_interval=4, staging_dir=Path("/proc"), publish_method="broadcast")
    with pytest.raises(OptionError, match="nothing can be written to /proc: ") as caught:
        check_staging(core, backend(), 0)
    assert caught.value.origin == "staging_dir"
    check_staging(core.model_copy(update={"staging_dir": tmp_path}), backend(), 0)
    assert list(tmp_path.iterdir()) == []
