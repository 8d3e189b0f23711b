"""Live progress on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from asyncrl import EvalRecord, MetricRecord, Plugin, PluginOptions, RunFacts, RunHeader, hookimpl
from pydantic import Field

if TYPE_CHECKING:
    from asyncrl_console.views import View


class ConsoleOptions(PluginOptions):
    """Options of the `console` logger."""

    style: Literal["auto", "live", "plain"] = Field(
        "auto", description="One live display (live) or lines (plain); auto is live on a terminal and plain elsewhere."
    )
    every_seconds: float = Field(
        5.0, ge=0, description="Plain style: at least so many seconds lie between two lines about steps."
    )


class Console(Plugin):
    """Shows step, reward, evals, staleness, buffer, speeds, who waits for whom, and the time left."""

    hook_api = 1
    Options = ConsoleOptions
    options: ConsoleOptions

    def __init__(self, options: ConsoleOptions, run: RunFacts) -> None:
        super().__init__(options, run)
        self._view: View | None = None
        self._progress: Any = None

    @hookimpl
    def log_start(self, header: RunHeader) -> None:
        from asyncrl_console.progress import Progress

        self._progress = Progress(header.steps, self._capacity(header))
        self._shown().start(header.name, self._progress)

    @hookimpl
    def log_metrics(self, record: MetricRecord) -> None:
        if self._progress is not None and self._progress.add(record):
            self._shown().step(record.time)

    @hookimpl
    def log_eval(self, record: EvalRecord) -> None:
        if self._progress is not None and not record.skipped:  # a skip comes as a message too, with its reason
            self._shown().say(self._progress.add_eval(record))

    @hookimpl
    def log_message(self, level: str, message: str) -> None:
        self._shown().say(message, level)

    @hookimpl
    def log_end(self) -> None:
        self._shown().end()

    def _shown(self) -> View:
        if self._view is None:
            from asyncrl_console.views import LiveView, Out, PlainView

            out = Out(highlight=False)
            live = out.is_terminal if self.options.style == "auto" else self.options.style == "live"
            self._view = LiveView(out) if live else PlainView(out, self.options.every_seconds)
        return self._view

    def _capacity(self, header: RunHeader) -> int:
        """Groups the buffer may hold, when its options say it the usual way; 0 when not."""
        buffer = header.options.get("buffer", {})
        factor = buffer.get("capacity_factor") if isinstance(buffer, dict) else None
        return max(self.run.batch_size, int(factor * self.run.batch_size)) if isinstance(factor, int | float) else 0
