"""Starts SGLang so that it listens where it should and shows no key: `python launch.py FLAG …`, under SGLang's interpreter, which need not
have anything of asyncrl.
"""

from __future__ import annotations

import logging
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

KEY_VARIABLE = "ASYNCRL_ENGINE_KEY"
OTHER_STORES = ("--nnodes", "--dist-init-addr", "--nccl-port", "--dp", "--dp-size")
"""Flags with which SGLang's processes meet elsewhere, or in several groups."""


def main() -> None:
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]
    if key := os.environ.pop(KEY_VARIABLE, ""):
        _require(key)
    store = _open_store() if meet_at_one_store(sys.argv[1:]) else None  # kept while the server runs
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
    del store


def meet_at_one_store(arguments: Sequence[str]) -> bool:
    """Whether all processes of a server with these arguments form one group on this machine."""
    if {word.partition("=")[0] for word in arguments} & {*OTHER_STORES}:
        return False
    return arguments[arguments.index("--data-parallel-size") + 1] == "1"


def _require(key: str) -> None:
    """Give SGLang its key, which it takes from the command line alone, inside of the process: every user of the machine sees command
    lines. It writes its arguments into its log, where the key is masked."""
    make = logging.getLogRecordFactory()

    def masked(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = make(*arguments, **more)
        if key in (text := record.getMessage()):
            record.msg, record.args = text.replace(key, "**********"), ()
        return record

    logging.setLogRecordFactory(masked)
    sys.argv.append(f"--api-key={key}")


def _open_store() -> Any:
    """Return the store at which the server's processes meet, on loopback: one that they open themselves listens on every address."""
    torch = import_module("torch.distributed")  # SGLang's own, as this runs in its environment
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    store = torch.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listening.detach())
    os.environ["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"tcp://127.0.0.1:{port}"
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # so that torch opens none in rank 0
    sys.argv += ["--nccl-port", str(port)]  # for versions that do not know the first variable
    return store


if __name__ == "__main__":
    main()
