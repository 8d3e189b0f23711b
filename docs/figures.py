"""Runs every `asyncrl simulate` command of `docs/scheduling.md` again and writes what it prints below it, and the figures it draws.

make figures                                  all of them, some two minutes
.venv/bin/python docs/figures.py --check      exit code 1 if one would print something else
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "scheduling.md"
BLOCK = re.compile(r"```console\n\$ (?P<command>asyncrl simulate .*)\n(?P<output>(?:.*\n)*?)```\n")


def output(command: str) -> str:
    """Return what a command prints, run from the repository's root."""
    arguments = shlex.split(command)[1:]
    ran = subprocess.run(
        [sys.executable, "-m", "asyncrl", *arguments], cwd=PAGE.parent.parent, stdout=subprocess.PIPE, text=True, check=True
    )
    return ran.stdout


def block(found: re.Match[str]) -> str:
    print(f"$ {found['command']}", file=sys.stderr)
    return f"```console\n$ {found['command']}\n{output(found['command'])}```\n"


def main() -> int:
    before = PAGE.read_text(encoding="utf-8")
    after = BLOCK.sub(block, before)
    if "--check" in sys.argv:
        return int(after != before)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
