"""How a test session begins and ends: Ctrl-C works in what it starts; the verdict is printed, then the process ends at once."""

from __future__ import annotations

import os
import signal
import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what runs in the background with SIGINT ignored, and every command that a test starts would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Skip the interpreter's teardown where tests used torch's process groups.

    Threads of a gloo group can outlive it, and the C++ runtime aborts a process that ends while they run.
    """
    if "torch.distributed" in sys.modules and hasattr(config, "session_exit_status"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.session_exit_status)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.session_exit_status = int(exitstatus)
