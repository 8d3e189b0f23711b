"""Starts SGLang with a key: `python launch.py FLAG …`, under SGLang's interpreter, which need not have anything of asyncrl.

SGLang takes its key from the command line alone, which every user of the machine sees, and writes all its arguments into its log. So the
key comes by environment, is added inside the process, and is masked in what it logs.
"""

from __future__ import annotations

import logging
import os
import runpy
import sys
from typing import Any

KEY_VARIABLE = "ASYNCRL_ENGINE_KEY"


def main() -> None:
    key = os.environ.pop(KEY_VARIABLE)
    make = logging.getLogRecordFactory()

    def masked(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = make(*arguments, **more)
        if key in (text := record.getMessage()):
            record.msg, record.args = text.replace(key, "**********"), ()
        return record

    logging.setLogRecordFactory(masked)
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(os.path.abspath(__file__))]
    sys.argv += ["--api-key", key]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
