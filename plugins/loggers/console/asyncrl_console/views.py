"""Two ways to show a run: plain lines, and one live display at the bottom of a terminal."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl_console.progress import Progress

STYLES = {"warning": "yellow", "error": "bold red"}
HEADINGS = {"engines": "engines generate", "trainer": "trainer reads", "waiting": "bottleneck", "left": "time left"}


class Out(Console):
    """Goes quiet when its reader has left, as `head` does: the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class View(Protocol):
    def start(self, title: str, progress: Progress) -> None: ...

    def step(self, now: float) -> None:
        """A step is done; `now` is its time in seconds."""
        ...

    def say(self, text: str, level: str = "info") -> None: ...

    def end(self) -> None: ...


class PlainView:
    """A line a step, but not more often than `every` seconds; other lines at once."""

    def __init__(self, out: Console, every: float) -> None:
        self._out = out
        self._every = every
        self._last = float("-inf")
        self._progress: Progress | None = None
        self._unsaid = False

    def start(self, title: str, progress: Progress) -> None:
        self._progress = progress
        self.say(title)

    def step(self, now: float) -> None:
        self._unsaid = now - self._last < self._every
        if not self._unsaid and self._progress is not None:
            self._last = now
            self.say(self._progress.line())

    def say(self, text: str, level: str = "info") -> None:
        prefix = "" if level == "info" else f"{level}: "
        self._out.print(Text(prefix + text), soft_wrap=True)

    def end(self) -> None:
        if self._unsaid and self._progress is not None:
            self.say(self._progress.line())
        self._unsaid = False


class LiveView:
    """A display that is drawn over itself; lines scroll above it."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._live: Live | None = None
        self._title = ""
        self._progress: Progress | None = None

    def start(self, title: str, progress: Progress) -> None:
        self._title, self._progress = title, progress
        self._live = Live(console=self._out, get_renderable=self.render, refresh_per_second=4)
        self._live.start()
        atexit.register(self.end)  # whatever happens, the cursor comes back

    def step(self, now: float) -> None:
        if self._live is not None:
            self._live.refresh()

    def say(self, text: str, level: str = "info") -> None:
        prefix = "" if level == "info" else f"{level}: "
        self._out.print(Text(prefix + text, style=STYLES.get(level, "")), soft_wrap=True)

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            atexit.unregister(self.end)

    def render(self) -> Group:
        """Return the display as it is now."""
        progress = self._progress
        if progress is None:
            return Group()
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=progress.steps, completed=progress.step, width=30),
            Text(f"step {progress.step}/{progress.steps}"),
        )
        values = Table.grid(padding=(0, 2))
        cells = [(Text(HEADINGS.get(name, name), style="dim"), Text(text)) for name, text in progress.fields().items()]
        for left, right in zip(cells[::2], [*cells[1::2], (Text(), Text())], strict=False):
            values.add_row(*left, *right)
        return Group(bar, values) if cells else Group(bar, Text("waiting for the first step", style="dim"))
