"""The plugin keeps the contract of its slot; the server that asyncrl brings along stands for the one that you want to start."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import ClassVar

from asyncrl.testing import EngineSuite

PLACE = ("--model", "{model}", "--host", "{host}", "--port", "{port}", "--device", "{device}", "--dtype", "{dtype}")


class TestTemplateName(EngineSuite):
    plugin = "template-name"
    options: ClassVar[dict[str, object]] = {
        "command": [sys.executable, "-m", "asyncrl_torch.server", *PLACE],
        "same_digest": True,
        "begin_end": True,
    }
    no_server = "" if find_spec("asyncrl_torch") else "asyncrl-plugin-torch is not installed"
