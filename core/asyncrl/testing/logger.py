"""The suite of loggers: they take everything that a run tells, late eval points and a full disk too, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from asyncrl.authoring import Plugin
from asyncrl.errors import AsyncrlError
from asyncrl.host import Active
from asyncrl.testing.base import BaseSuite
from asyncrl.testing.records import MANY, Told, calls, tell_a_run
from asyncrl.testing.rules import broken, expect


class LoggerSuite(BaseSuite):
    """Contract of a logger: it is told of one run by the controller, and never stops or slows it.

    One run is told, once a test session; most rules look at how it went. A subclass may also set:

    Attributes:
        most_seconds: in which it must have taken 300 records: the trainer waits meanwhile.
        leaving_seconds: in which its processes must be gone after log_end.
    """

    slot = "loggers"
    most_seconds: ClassVar[float] = 20.0
    leaving_seconds: ClassVar[float] = 15.0

    def test_it_takes_a_whole_run(self) -> None:
        """Start, metrics of every axis, an eval point on time, messages of every level, the end: it raises nothing."""
        self._takes("plain", "a logger takes what a run tells, from log_start to log_end", "see what the message names")

    def test_it_takes_late_and_skipped_eval_points(self) -> None:
        """An eval point may come after later steps were logged, or as a skip with its reason."""
        self._takes(
            "late",
            "an eval point is logged at the step that it belongs to, however late it comes",
            "give the record's own step to whatever you log to, and never count on steps that only grow",
        )

    def test_it_takes_values_that_are_not_finite(self) -> None:
        """A loss may be nan, a ratio infinite."""
        self._takes(
            "not finite",
            "a value that is not finite is logged or left out, and stops nothing",
            "write it as null, or leave it out",
        )

    def test_it_leaves_records_as_they_are(self) -> None:
        """Other loggers and observers are given the same records."""
        changed = self._told().changed
        expect(
            not changed,
            promised="whatever a logger is given stays as it is",
            happened=f"it was changed by {', '.join(sorted(set(changed)))}",
            fix="copy before you change something, as by dict(record.values)",
        )

    def test_it_keeps_up(self) -> None:
        """300 records take no more than `most_seconds`."""
        seconds = self._told().many_seconds
        expect(
            seconds <= self.most_seconds,
            promised=f"{MANY} records take at most {self.most_seconds:g} s, because the trainer waits meanwhile",
            happened=f"they took {seconds:.1f} s",
            fix="hand records to a thread or a process, and drop some rather than wait; or raise most_seconds in the suite",
        )

    def test_it_leaves_no_process(self) -> None:
        """After log_end nothing that it started is running."""
        left = self._told().left
        expect(
            not left,
            promised="after log_end nothing that the logger started goes on",
            happened=f"still running: {'; '.join(left)}",
            fix="end it in log_end, and wait for it with a deadline",
        )

    def test_it_ends_whenever_it_is_told_to(self) -> None:
        """A run may fail before it has started: messages and the end come without a start, and the end may come twice."""
        host = self.host()
        for hook, arguments in (
            ("log_message", {"level": "error", "message": "no engine"}),
            ("log_end", {"summary": {}}),
            ("log_end", {"summary": {}}),
        ):
            try:
                host.each(hook, **arguments)
            except AsyncrlError as error:
                broken(
                    promised="log_message and log_end may come before log_start, and log_end twice",
                    happened=f"{hook} raised: {error}",
                    fix="look in them whether log_start has opened what they need",
                )

    def test_a_disk_that_fails_is_told_once(self) -> None:
        """Where the run's directory can't be written, log_start may raise; whatever comes after it raises nothing more."""
        host = self.host()
        with TemporaryDirectory() as folder:
            file = Path(folder, "no-directory")
            file.write_text("")
            raised = []
            for kind, hook, arguments in calls(file):
                if kind != "plain":
                    continue
                try:
                    host.each(hook, **arguments)
                except AsyncrlError as error:
                    raised.append((hook, str(error)))
            later = [f"{hook}: {error}" for hook, error in raised if hook != "log_start"]
            expect(
                not later,
                promised="a logger that can't write says so once, in log_start, and is silent from then on",
                happened=lambda: f"{len(later)} later calls raised, the first was {later[0]}",
                fix="keep what log_start opens on self only once it is open, and do nothing where it is missing",
            )

    @classmethod
    def exercise(cls, options: Mapping[str, Any]) -> list[Plugin]:
        """Tell it a whole run, or look at the one that it was told."""
        if options == cls.options:
            cls._told()
            return [_TOLD[cls][0].plugin]
        active = cls.make(options)
        tell_a_run(cls.host(active), cls.leaving_seconds)
        return [active.plugin]

    @classmethod
    def _told(cls) -> Told:
        if cls not in _TOLD:
            active = cls.make()
            _TOLD[cls] = active, tell_a_run(cls.host(active), cls.leaving_seconds)
        return _TOLD[cls][1]

    def _takes(self, kind: str, promised: str, fix: str) -> None:
        raised = [f"{hook} raised: {error}" for each, hook, error in self._told().raised if each == kind]
        expect(not raised, promised=promised, happened=lambda: f"{raised[0]} ({len(raised)} such calls raised)", fix=fix)


_TOLD: dict[type[LoggerSuite], tuple[Active, Told]] = {}
"""The run that each suite's plugin was told."""
