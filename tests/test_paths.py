"""Names from files stay in their directory, and directories in shared memory are their owner's alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from asyncrl.errors import ResourceError
from asyncrl.paths import inside, make_private


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "..", ".", "", "a/..", "x\0y", "out/secret", "round/x"])
def test_a_name_that_leads_out_of_its_directory_is_refused(name: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "secret").touch()
    (home / "out").symlink_to(tmp_path)
    (home / "round").symlink_to(home / "round")
    with pytest.raises(ValueError, match=r"leads out of|is no name of a file") as refused:
        inside(home, name)
    assert len(str(refused.value)) < 1000


def test_a_name_below_is_taken_also_through_a_link_that_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    for name in ("x", "a/x", "link/x", "...", "a..b"):
        assert inside(tmp_path, name) == tmp_path / name


def test_a_private_directory_is_its_owners_alone(tmp_path: Path) -> None:
    place = tmp_path / "deeper" / "mine"
    for _ in range(2):  # made, then found
        make_private(place, origin="publish_dir")
        assert place.stat().st_mode & 0o777 == 0o700
        place.chmod(0o777)


@pytest.mark.parametrize("what", ["link", "file", "somebody's"])
def test_what_somebody_else_put_there_is_refused(what: str, tmp_path: Path) -> None:
    place = tmp_path / "asyncrl-run"
    if what == "link":
        (tmp_path / "theirs").mkdir()
        place.symlink_to(tmp_path / "theirs")
    elif what == "file":
        place.touch()
    else:
        place.mkdir()
        try:
            os.chown(place, 65534, -1)
        except PermissionError:
            pytest.skip("only root can give a directory away")
    with pytest.raises(ResourceError, match="publish_dir: .* is not a directory of this user"):
        make_private(place, origin="publish_dir")
