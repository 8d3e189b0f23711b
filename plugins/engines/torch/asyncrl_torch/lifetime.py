"""A server that nobody owns any more must not live on: it watches the process that started it, and ends with it."""

from __future__ import annotations

import os
import select
import threading
import time


def end_with(parent: int) -> None:
    """End this process, at once, when the process `parent` ends. Works from the first moment on, also while a model is loading.

    Not `PR_SET_PDEATHSIG`: that one fires when the *thread* that started the server ends.
    """
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(0)
    except (AttributeError, OSError):
        handle = None  # another system than Linux, or an old one: look once a second
    threading.Thread(target=_watch, args=(parent, handle), name="parent", daemon=True).start()


def _watch(parent: int, handle: int | None) -> None:
    if handle is not None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
    else:
        while _lives(parent):
            time.sleep(1.0)
    os._exit(0)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
