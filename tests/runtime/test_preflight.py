"""What is refused before anything starts, with the option that is at fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from asyncrl.errors import ResourceError
from asyncrl.options import resolve
from asyncrl.run_options import RunOptions
from asyncrl.runtime.preflight import require_bind, require_space
from small_disk import small_disk

DEMO = Path(__file__).parents[2] / "examples" / "demo.toml"


def options(*flags: str) -> RunOptions:
    return resolve(DEMO, flags).core


def test_an_address_of_another_machine_is_refused_and_in_a_cluster_it_may_be_a_nodes() -> None:
    with pytest.raises(ResourceError, match=r"192\.0\.2\.1 is no address of this machine") as refused:
        require_bind(options("--bind", "192.0.2.1"))
    assert refused.value.origin == "bind"
    for flags in (["--bind", "192.0.2.1", "--ray-address", "192.0.2.9:6379"], ["--bind", "0.0.0.0"], []):
        require_bind(options(*flags))


def test_a_run_that_goes_on_needs_no_room_for_the_checkpoints_that_it_has(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"0" * 100_000)  # a checkpoint takes 0.4 MB
    with small_disk(tmp_path / "disk", 1000) as disk:
        core = options("--runs-dir", str(disk), "--save-interval", "1", "--keep-checkpoints", "2")
        with pytest.raises(ResourceError, match="1.2 MB are needed"):
            require_space(core, model)
        require_space(core, model, there=2)
        with pytest.raises(ResourceError, match="0.4 MB are needed"):
            (disk / "ballast").write_bytes(b"x" * 800_000)
            require_space(core, model, there=9)
