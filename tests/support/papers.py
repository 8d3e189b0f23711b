"""The project's Markdown pages as data: their code blocks, commands, links, headings and inline code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fake_distributions import install

ROOT = Path(__file__).resolve().parents[2]
PAPERS = sorted(
    {
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("[!.]*/README.md"),
        *ROOT.glob("plugins/*/*/README.md"),
    }
)
PROGRAM = re.compile(r"(?:\.venv/bin/)?(asyncrl|python3?|pip|pytest|make|git|pre-commit)\b")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) or "."


@dataclass(frozen=True)
class Block:
    """A fenced block. `file` is the file that the line above it names (`` `path`: ``), or ''."""

    paper: Path
    line: int
    language: str
    file: str
    text: str

    def __str__(self) -> str:
        return f"{relative(self.paper)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command that a page tells its reader to run; `output` is what the page says it prints, or ''."""

    paper: Path
    line: int
    text: str
    output: str

    def __str__(self) -> str:
        return f"{relative(self.paper)}:{self.line} {self.text}"


@cache
def blocks(paper: Path) -> tuple[Block, ...]:
    text = paper.read_text()
    found = []
    for fence in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        above = re.search(r"`([^`\s]+\.\w+)`:\s*\Z", text[: fence.start()])
        line = text[: fence.start()].count("\n") + 1
        found.append(Block(paper, line, fence[1].strip(), above[1] if above else "", fence[2]))
    return tuple(found)


def commands(paper: Path) -> Iterator[Command]:
    """Every command in the page's blocks, without its prompt and its comment. A block without a language that begins with one holds
    nothing else."""
    for block in blocks(paper):
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                yield Command(paper, block.line, line, output)
        elif block.language in ("sh", "bash") or (not block.language and PROGRAM.match(block.text)):
            for line in block.text.splitlines():
                if text := line.partition(" #")[0].strip():
                    yield Command(paper, block.line, text, "")


def prose(paper: Path) -> str:
    """Return the page without its fenced blocks."""
    return re.sub(r"^```[^\n`]*\n.*?^```$", "", paper.read_text(), flags=re.MULTILINE | re.DOTALL)


def inline_code(paper: Path) -> set[str]:
    return {" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(paper))}


def links(paper: Path) -> list[tuple[str, str]]:
    """Return (target, anchor) of every link and picture; a target is '' for the page itself."""
    text = re.sub(r"`[^`\n]*`", "", prose(paper))
    return [(target, anchor) for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text))]


def anchors(paper: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#+ +(.+)$", prose(paper), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def install_documented_plugins(folder: Path) -> set[str]:
    """Put every plugin that a page shows into `folder`, as an installed distribution; return their names as distributions."""
    names = set()
    for paper in PAPERS:
        sources = [block.text for block in blocks(paper) if block.language == "python"]
        for block in blocks(paper):
            project: dict[str, Any] = tomllib.loads(block.text).get("project", {}) if block.language == "toml" else {}
            for group, points in project.get("entry-points", {}).items():
                (target,) = points.values()
                module, _, kind = target.partition(":")
                source = next(text for text in sources if f"class {kind}(" in text)
                install(folder, project["name"], {group: points}, version=project["version"], modules={module: source})
                names.add(project["name"])
    return names
