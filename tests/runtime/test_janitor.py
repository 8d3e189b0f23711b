"""After the controller is gone, so are its processes and its temporary directories."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

CONTROLLER = """
import subprocess, sys, time
from pathlib import Path
from asyncrl.runtime.janitor import Janitor
directory = Path(sys.argv[1])
directory.mkdir()
janitor = Janitor([directory])
marked = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
opener = subprocess.Popen([sys.executable, "-c", "import sys, time; f = open(sys.argv[1] + '/f', 'w'); time.sleep(600)", sys.argv[1]],
                          start_new_session=True, env={})
while not (directory / "f").exists():
    time.sleep(0.02)
print(marked.pid, opener.pid, janitor._process.pid, flush=True)
if sys.argv[2] == "orderly":
    janitor.close()
else:
    time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def start(directory: Path, how: str) -> tuple[subprocess.Popen[str], list[int]]:
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(directory), how], stdout=subprocess.PIPE, text=True)
    return controller, [int(pid) for pid in controller.stdout.readline().split()]


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process of the run is left"
        time.sleep(0.05)


def test_a_killed_controller_leaves_nothing(tmp_path: Path) -> None:
    controller, pids = start(tmp_path / "run", "killed")
    with controller:
        os.kill(controller.pid, signal.SIGKILL)
        wait_gone(pids)
    assert not (tmp_path / "run").exists()


def test_close_returns_when_nothing_is_left(tmp_path: Path) -> None:
    controller, pids = start(tmp_path / "run", "orderly")
    with controller:
        assert controller.wait(60) == 0
        assert all(gone(pid) for pid in pids)
    assert not (tmp_path / "run").exists()


OWNER = """
import os, signal, sys, time
from pathlib import Path
from asyncrl.runtime import child
from asyncrl.runtime.janitor import Janitor
janitor, log = Janitor([]), Path(sys.argv[1])
code = '''
import sys, tempfile, time
shared = open(sys.argv[1], "w")
print(tempfile.NamedTemporaryFile(delete=False).name, flush=True)
time.sleep(600)
'''
server = child.spawn([sys.executable, "-c", code, sys.argv[2]], env={}, log_file=log)
while not log.read_text() or not list(log.parent.glob("temporary/*/shared-files")):
    time.sleep(0.05)
os.kill(server.pid, signal.SIGKILL)  # so that it can't clear away itself
server.wait()
janitor.close()
"""


def test_temporary_and_shared_files_of_a_server_go_though_the_process_that_watched_it_was_killed(tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    env = {**os.environ, "TMPDIR": str(place)}
    shared = Path("/dev/shm") / f"asyncrl-test-{uuid.uuid4().hex}"
    arguments = [str(tmp_path / "log"), str(shared)]
    subprocess.run([sys.executable, "-c", OWNER, *arguments], check=True, env=env, timeout=120)
    assert (tmp_path / "log").read_text().startswith(f"{place}/asyncrl-")
    assert list(place.iterdir()) == [] and not shared.exists()
