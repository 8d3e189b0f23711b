"""Writes the pages of `docs/reference`, and parts of `docs/plugins/slots` and `docs/faults.md`, from the declarations in the code, so that
none can drift.

make docs                                      write them
.venv/bin/python docs/generate.py --check      exit code 1 if a page differs from what would be written
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

from generator.commands import commands_page  # noqa: E402
from generator.errors import errors_page  # noqa: E402
from generator.faults import faults_filled  # noqa: E402
from generator.hooks import hooks_page  # noqa: E402
from generator.metrics import metrics_page  # noqa: E402
from generator.names import names_page  # noqa: E402
from generator.options import options_page  # noqa: E402
from generator.slots import filled  # noqa: E402

PAGES: dict[str, Callable[[], str]] = {
    "reference/hooks.md": hooks_page,
    "reference/names.md": names_page,
    "reference/options.md": options_page,
    "reference/metrics.md": metrics_page,
    "reference/commands.md": commands_page,
    "reference/errors.md": errors_page,
}


def written() -> Iterator[tuple[Path, str]]:
    """Every page that is generated, whole or in part, as it should be."""
    for name, write in PAGES.items():
        yield DOCS / name, _formatted(write(), DOCS / name)
    for path in sorted((DOCS / "plugins" / "slots").glob("*.md")):
        yield path, filled(path.read_text(), path.stem)
    yield DOCS / "faults.md", faults_filled((DOCS / "faults.md").read_text())


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    stale = []
    for path, text in written():
        if arguments != ["--check"]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(DOCS))
    for name in stale:
        print(f"docs/{name} differs from the declarations (run `make docs`)", file=sys.stderr)
    return 1 if stale else 0


def _formatted(text: str, path: Path) -> str:
    """Return the page with its Python as `make check` wants it."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", path, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
