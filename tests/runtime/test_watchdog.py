"""What nobody can see from outside is written down: who waits for what, where each process is, and who was stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asyncrl.runtime.processes import processes_of, stacks_of
from asyncrl.runtime.watchdog import Stall, Watchdog, report, summary
from asyncrl.stacks import unregister
from asyncrl.waits import Waiting, current_waits

SECONDS = 120.0
REGISTERED = """
import asyncio, re, sys, threading
from asyncrl.stacks import register, watch_loop
from asyncrl.waits import Waiting
register("the one under test", {run_dir!r})
def ready():
    print("ready", flush=True)
{body}
"""
WAITS_FOR_A_FUTURE = """
async def innermost():
    await asyncio.get_running_loop().create_future()
async def middle():
    await innermost()
async def main():
    watch_loop()
    wait = Waiting(lambda: "a batch that never comes")
    tasks = [asyncio.create_task(middle()) for _ in range(3)]
    asyncio.get_running_loop().call_later(0.1, ready)
    await asyncio.gather(*tasks)
asyncio.run(main())
"""
HOLDS_THE_LOCK = """
def holds_the_lock():
    ready()
    re.match(r"(a+)+$", "a" * 60 + "b")
holds_the_lock()
"""


@pytest.fixture(autouse=True)
def not_registered() -> None:
    """Actors that other tests ran in this process were registered, and a process is registered once."""
    unregister()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def begin(body: str) -> subprocess.Popen[str]:
        script = REGISTERED.format(run_dir=str(tmp_path), body=body)
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait(30)


def text_of(run_dir: Path, process: subprocess.Popen[str]) -> str:
    found = [one for one in processes_of(str(run_dir), -1) if one.pid == process.pid]
    return report(stacks_of(found))


def test_a_process_says_what_it_waits_for_and_where_each_task_stands(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    text = text_of(tmp_path, start(WAITS_FOR_A_FUTURE))
    assert re.search(r"== the one under test \(process \d+\), child of \d+: sleeping", text)
    assert re.search(r"waits for: a batch that never comes \(\d+ s\)", text)
    assert "Thread 0x" in text or "Current thread" in text
    assert re.search(r"3 × task:\n.*in middle\n.*in innermost\n  awaits _asyncio\.Future", text)


def test_the_stacks_are_written_twice_and_each_time_anew(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(WAITS_FOR_A_FUTURE)
    assert text_of(tmp_path, process).count("3 × task:") == 1
    assert text_of(tmp_path, process).count("3 × task:") == 1


def test_a_process_that_holds_the_interpreters_lock_shows_its_stack(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    text = text_of(tmp_path, start(HOLDS_THE_LOCK))
    assert re.search(r"line \d+ in holds_the_lock", text)
    assert "no thread of Python gets its turn there" in text


def test_a_stopped_process_is_named_and_not_waited_for(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(WAITS_FOR_A_FUTURE)
    process.send_signal(signal.SIGSTOP)
    until(lambda: "stopped" in text_of(tmp_path, process))
    text = text_of(tmp_path, process)
    assert summary(text) == [f"stopped: the one under test (process {process.pid})"]
    process.send_signal(signal.SIGCONT)
    until(lambda: "3 × task:" in text_of(tmp_path, process))


def test_children_that_know_nothing_of_it_are_listed_and_left_alone(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGUSR1 would end them."""
    process = start("import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nready()\nchild.wait(600)")
    found = processes_of(str(tmp_path), -1)
    text = report(stacks_of(found))
    child = next(one for one in found if one.parent == process.pid)
    assert re.search(rf"== sleep 600 \(process {child.pid}\), child of {process.pid}: sleeping", text)
    assert next(one for one in processes_of(str(tmp_path), -1) if one.pid == child.pid).state == "S"
    os.kill(child.pid, signal.SIGKILL)


@pytest.mark.skipif(not (Path(sys.executable).parent / "py-spy").exists(), reason="py-spy is not installed")
def test_py_spy_tells_the_stack_of_a_process_that_does_not_and_no_key_is_shown(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    foreign = "import time\ndef foreign(): print('ready', flush=True); time.sleep(600)\nforeign()"
    process = start(
        f"import subprocess\nsubprocess.run([sys.executable, '-c', {foreign!r}, '--api-key', 'planted'], timeout=600)"
    )
    found = [one for one in processes_of(str(tmp_path), -1) if one.parent == process.pid]
    text = report(stacks_of(found))
    os.kill(found[0].pid, signal.SIGKILL)
    assert "planted" not in text
    if "py-spy says" in text:
        pytest.skip("this system does not let py-spy look")
    assert "foreign (<string>:2)" in text


def test_another_runs_processes_are_not_touched(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    start(WAITS_FOR_A_FUTURE)
    assert processes_of(str(tmp_path / "other"), -1) == []


def test_it_speaks_up_when_nothing_moves_and_less_and_less_often() -> None:
    stall = Stall(10.0)
    said = [now for now in range(100) if stall.look("the same", float(now))]
    assert said == [10, 20, 40, 80]
    assert not stall.look("something else", 100.0)
    assert "nothing has moved for 10 s" in stall.look("something else", 110.0)


def test_it_can_be_turned_off() -> None:
    stall = Stall(0.0)
    assert not any(stall.look("the same", float(now)) for now in range(10_000))


def test_what_stands_still_is_written_into_the_run_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.waits._CURRENT", weakref.WeakSet())  # other tests of this process end in the middle of theirs

    async def main() -> None:
        with Watchdog(tmp_path, 0.1) as watchdog:
            waiting = Waiting(lambda: "the batch of step 7")
            watchdog.begin(lambda: "the same")
            await until_async(lambda: "nothing has moved" in caplog.text)
            waiting.over()

    with caplog.at_level(logging.WARNING, "asyncrl"):
        asyncio.run(main())
    assert re.search(r"it waits for: the batch of step 7 \(\d+ s\).*their stacks are in ", caplog.text)
    (file, *_) = sorted((tmp_path / "logs").glob("stacks-*.txt"))
    text = file.read_text()
    assert f"== controller (process {os.getpid()})" in text
    assert "in until_async" in text
    assert current_waits() == []


def test_the_signal_asks_for_the_stacks_at_any_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with Watchdog(tmp_path, 0.0):
            os.kill(os.getpid(), signal.SIGUSR1)
            await until_async(lambda: "asked for (SIGUSR1)" in caplog.text)

    with caplog.at_level(logging.WARNING, "asyncrl"):
        asyncio.run(main())
    assert len(list((tmp_path / "logs").glob("stacks-*.txt"))) == 1


def test_a_command_whose_own_loop_stands_still_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.runtime.watchdog.SAY_SECONDS", 0.5)

    async def main() -> None:
        with Watchdog(tmp_path, 0.1) as watchdog:
            watchdog.begin(lambda: "the same")
            await asyncio.sleep(0)
            until(lambda: (tmp_path / "logs").is_dir() and "event loop stands still" in capfd.readouterr().err)

    asyncio.run(main())
    (file, *_) = sorted((tmp_path / "logs").glob("stacks-*.txt"))
    assert "in test_a_command_whose_own_loop_stands_still_says_so" in file.read_text()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def until_async(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
