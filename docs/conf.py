"""The site: every paper of the repository as one set of pages. `make site` builds it, and any warning is an error.

The source is the repository's root, so that a link between two papers is the same on the site, in the repository and in an editor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asyncrl import __version__
from asyncrl.plugins import SLOTS

CONTENTS = {
    "Use": [
        "getting-started",
        "run-directory",
        "resume",
        "faults",
        "reading-a-run",
        "eval",
        "sglang",
        "simulate",
        "scheduling",
        "/examples/README",
    ],
    "Write plugins": [
        "plugins/index",
        "plugins/first-plugin",
        "plugins/eval",
        "plugins/slots/index",
        "plugins/publish",
        "plugins/compatibility",
    ],
    "Reference": [
        "reference/options",
        "reference/commands",
        "reference/metrics",
        "reference/hooks",
        "reference/names",
        "reference/errors",
    ],
    "First-party plugins": ["/plugins/*/*/README"],
    "The project": [
        "/README",
        "architecture",
        "dependencies",
        "/benchmarks/README",
        "/CONTRIBUTING",
        "/SECURITY",
        "/CHANGELOG",
        "/core/README",
    ],
}
"""The navigation. It is added here, so that `index.md` is plain Markdown."""

project = "asyncrl"
author = "the asyncrl authors"
release = version = __version__

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "core/README.md",
    "examples/README.md",
    "benchmarks/README.md",
    "plugins/*/*/README.md",
]
exclude_patterns = [".venv", ".git", "build", "dist", "runs", "tests"]

# Anchors as GitHub makes them: the text of a heading in lower case, with dashes.
myst_heading_anchors = 4
highlight_language = "text"
nitpicky = True

html_theme = "furo"
html_title = f"asyncrl {version}"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False


def _add_contents(app: Any, docname: str, source: list[str]) -> None:
    if docname == root_doc:
        for title, pages in CONTENTS.items():
            source[0] += "\n".join(["", "```{toctree}", f":caption: {title}", ":glob:", ":hidden:", "", *pages, "```", ""])
    if docname == "docs/plugins/slots/index":
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *SLOTS, "```", ""])


def _add_entrance(app: Any, error: Exception | None) -> None:
    """The root page lies in a folder; whoever opens the site's root is sent there."""
    if error is None:
        target = f"{root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={target}">\n')


def setup(app: Any) -> None:
    app.connect("source-read", _add_contents)
    app.connect("build-finished", _add_entrance)
