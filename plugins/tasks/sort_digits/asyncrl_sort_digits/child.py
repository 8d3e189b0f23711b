"""The process that makes the model: `python -m asyncrl_sort_digits.child DIRECTORY RECIPE_AS_JSON`."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from asyncrl_sort_digits.model_cache import Recipe


def leave_with_parent() -> None:
    """End this process when its input closes, as it does when the parent dies in whatever way."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    leave_with_parent()
    from asyncrl_sort_digits.warm_start import make  # seconds of imports, during which the parent may die already

    make(Path(sys.argv[1]), Recipe(**json.loads(sys.argv[2])))
