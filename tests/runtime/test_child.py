"""A supervised command never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from asyncrl.runtime import child
from asyncrl.runtime.shared_files import remove_shared_files

FAMILY = """
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(inner.pid, flush=True)
time.sleep(600)
"""


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"waited 30 s for {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def grandchild(log: Path) -> int:
    wait_for(lambda: log.exists() and log.read_text().strip(), "the grandchild's pid")
    return int(log.read_text().split()[0])


def test_ending_it_ends_the_whole_tree(tmp_path: Path) -> None:
    process = child.spawn([sys.executable, "-c", FAMILY], env={}, log_file=tmp_path / "log")
    pid = grandchild(tmp_path / "log")
    child.end(process)
    wait_for(lambda: not alive(pid), "the grandchild to end")
    assert process.returncode == 0


def test_a_killed_owner_takes_the_whole_tree_with_it(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from asyncrl.runtime import child
keep = child.spawn([{sys.executable!r}, "-c", {FAMILY!r}], env={{}}, log_file=Path({str(tmp_path / "log")!r}))
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", code])
    pid = grandchild(tmp_path / "log")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_for(lambda: not alive(pid), "the grandchild to end")


def test_a_command_that_ignores_the_polite_signal_is_killed(tmp_path: Path, monkeypatch) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    process = child.spawn([sys.executable, "-c", code], env={}, log_file=tmp_path / "log")
    wait_for(lambda: (tmp_path / "log").read_text().strip(), "the command")
    child.end(process)
    assert process.returncode is not None


def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    process = child.spawn([sys.executable, "-c", "raise SystemExit(7)"], env={}, log_file=tmp_path / "log")
    assert process.wait(30) == 7
    process.stdin.close()


def test_environment_and_output_reach_their_places(tmp_path: Path) -> None:
    process = child.spawn(
        [sys.executable, "-c", "import os; print(os.environ['MARK'])"], env={"MARK": "m1"}, log_file=tmp_path / "a" / "log"
    )
    assert process.wait(30) == 0
    process.stdin.close()
    assert (tmp_path / "a" / "log").read_text() == "m1\n"
    assert "MARK" not in os.environ


LITTER = "import tempfile, time; print(tempfile.NamedTemporaryFile(delete=False).name, flush=True); time.sleep({})"
"""What SGLang does for each of its sockets."""


@pytest.mark.parametrize(("seconds", "code"), [(0, 0), (600, 0), (600, -9)], ids=["it ended", "it was ended", "it was killed"])
def test_temporary_files_end_with_the_command(tmp_path: Path, seconds: int, code: int) -> None:
    process = child.spawn(
        [sys.executable, "-c", LITTER.format(seconds)], env={"TMPDIR": str(tmp_path)}, log_file=tmp_path / "log"
    )
    wait_for(lambda: (tmp_path / "log").read_text().strip(), "the file")
    assert len(list(tmp_path.glob("asyncrl-*/*"))) == 1 or seconds == 0
    if code:
        (command,) = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        os.kill(command, signal.SIGKILL)
    if code or not seconds:
        assert process.wait(30) == (137 if code else 0)
    child.end(process)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


SHARES = """
import mmap, multiprocessing, os, sys, time
for name in sys.argv[1:]:
    file = os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 4096)
    mapped = mmap.mmap(file, 4096)
    os.close(file)
    globals()[name] = mapped  # kept
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["it was ended", "it was killed", "its supervisor was killed"])
def test_files_in_shared_memory_end_with_the_command_but_those_of_others(tmp_path: Path, how: str) -> None:
    """SGLang makes some for each life of a server."""
    mark = uuid.uuid4().hex
    own, used, older = (Path("/dev/shm") / f"{kind}_{mark}" for kind in ("own", "used", "older"))
    older.touch()
    try:
        names = [own.name, used.name, older.name]
        process = child.spawn([sys.executable, "-c", SHARES, *names], env={"TMPDIR": str(tmp_path)}, log_file=tmp_path / "log")
        wait_for(lambda: (tmp_path / "log").read_text().strip(), "the command")
        lock = f"sem.{(tmp_path / 'log').read_text().strip().lstrip('/')}"
        with used.open():
            if how != "it was ended":  # then it is looked at once more
                wait_for(lambda: any(lock in file.read_text() for file in tmp_path.glob("asyncrl-*/*")), "the list of its files")
            (command,) = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
            if how == "it was killed":
                os.kill(command, signal.SIGKILL)
                process.wait(30)
            if how == "its supervisor was killed":
                process.kill()
                wait_for(lambda: not alive(command), "the command to end")
                (left,) = tmp_path.glob("asyncrl-*")
                remove_shared_files(left)  # as the run's janitor does
            child.end(process)
        assert (own.exists(), used.exists(), older.exists()) == (False, True, True)
        assert not (Path("/dev/shm") / lock).exists()
    finally:
        for file in (own, used, older):
            file.unlink(missing_ok=True)
