"""A W&B server that does not do what it should."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from wandb_logger import KEY, own_environment


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """Everything that the test starts carries this mark; at its end nothing that does may be left."""
    with own_environment(tmp_path / "home") as mark:
        yield mark


@pytest.fixture
def silent_server(mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A server that takes connections and never answers; the event is set when the first has come."""
    asked, taken = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return
                asked.set()

        thread = threading.Thread(target=accept)
        thread.start()
        yield asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()
