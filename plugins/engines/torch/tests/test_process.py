"""The server as a process: how it refuses to start, and that it never outlives its owner."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from planted_code import plant

ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def serve(model: Path, port: int) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "asyncrl_torch.server", "--model", str(model), "--port", str(port)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, env=ENV)


def gone(process: int, seconds: float) -> bool:
    """Whether a process ends within this time."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_a_port_in_use_is_one_line_and_exit_code_2(model_a: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve(model_a, port)
    assert done.returncode == 2
    assert done.stderr == f"error: port {port} of 127.0.0.1 is in use\n"


def test_a_missing_model_is_one_line_and_exit_code_2(tmp_path: Path, port):
    done = serve(tmp_path / "nothing", port())
    assert done.returncode == 2
    assert done.stderr == f"error: no such model directory: {tmp_path / 'nothing'}\n"


def test_the_code_of_a_model_is_never_run(model_a: Path, tmp_path: Path, port):
    marker = plant(model_a, tmp_path / "planted")
    done = serve(tmp_path / "planted", port())
    assert done.returncode == 2
    assert done.stderr.endswith("needs code of its own, which is never run: trust_remote_code is off\n"), done.stderr
    assert not marker.exists()


def test_sigterm_ends_a_generating_server(start_server):
    server = start_server()
    body = b'{"input_ids": [1], "sampling_params": {"max_new_tokens": 4000, "ignore_eos": true}}'
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as client:
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        while server.ok("/v1/loads")["aggregate"]["total_running_reqs"] == 0:
            pass
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def test_a_server_ends_with_the_process_that_started_it(model_a: Path, port):
    """The parent is killed, so it cannot clean up."""
    script = (
        "import os, subprocess, sys\n"
        "argv = [sys.executable, '-m', 'asyncrl_torch.server', *sys.argv[1:], '--parent-pid', str(os.getpid())]\n"
        "server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)\n"
        "server.stdout.readline()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", script, "--model", str(model_a), "--port", str(port())]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        assert not gone(server, 0)
        parent.kill()
        assert gone(server, 60)


def test_describing_the_engine_imports_no_torch():
    check = "import asyncrl_torch, sys; assert not {'torch', 'transformers', 'aiohttp'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
