"""Every exception of asyncrl, in one tree. The class decides the exit code.

AsyncrlError                    1  anything below; catch this to catch all
├── UserError                   2  something the user wrote or chose; nothing was started
│   ├── OptionError                an option is unknown, of the wrong type, out of range, or contradicts another
│   ├── UnknownPlugin              no installed distribution offers this name for this slot
│   ├── AmbiguousPlugin            two distributions offer the same name
│   ├── DataError                  a data file is missing, broken or empty
│   ├── RunDirectoryError          the run directory exists already, or is no run
│   └── ResourceError              a port is taken, a disk is too full, a device is missing
├── PluginError                 3  a selected plugin is at fault; the cause is chained
│   ├── PluginLoadError            import, class or hook signatures are wrong
│   ├── PluginMismatch             a process found other plugin versions than the controller
│   └── PluginFailed               a slot's hook raised
├── RunError                    1  the run could not go on
│   ├── BooksError                 the ledger does not balance
│   ├── EngineError                an engine answered with an error that retrying did not cure
│   │   ├── EngineFault            one call to one engine failed in a way that another try may cure
│   │   ├── RequestFailed          one request failed for good (its sample is marked failed)
│   │   └── EnginesLost            no engine is left to send a request to
│   ├── PublicationError           new weights did not reach an engine, or were not what was sent
│   ├── TrainerError               a training step failed
│   ├── TrainerLost                a trainer rank died or hangs
│   ├── CheckpointError            a checkpoint could not be written or read
│   ├── ActorLost                  the process of a Ray actor died
│   ├── DeadlineExceeded           a wait reached its deadline
│   └── Stopped                    a loop that another one waits for has ended
└── EvalSkip                       raised by an eval backend: this point ends as a skip with the reason
"""

from __future__ import annotations

from typing import Any


def _rebuild(cls: type[AsyncrlError], message: str, state: dict[str, Any]) -> AsyncrlError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class AsyncrlError(Exception):
    """Base of all errors: what was wrong, where it came from, what would be right.

    Args:
        message: what was wrong, in one sentence.
        origin: where it came from, such as ``--buffer`` or ``run.toml: buffer.name``; empty when nothing was written.
        remedy: what would be right; empty when the message says it.
    """

    exit_code = 1

    def __init__(self, message: str, *, origin: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.origin = origin
        self.remedy = remedy

    def __str__(self) -> str:
        head = f"{self.origin}: {self.message}" if self.origin else self.message
        return f"{head} ({self.remedy})" if self.remedy else head

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


class UserError(AsyncrlError):
    exit_code = 2


class OptionError(UserError):
    pass


class UnknownPlugin(UserError):
    pass


class AmbiguousPlugin(UserError):
    pass


class DataError(UserError):
    pass


class RunDirectoryError(UserError):
    pass


class ResourceError(UserError):
    pass


class PluginError(AsyncrlError):
    """``detail`` is the formatted traceback of the cause, so that it survives a process boundary; empty when there is none."""

    exit_code = 3
    detail: str = ""


class PluginLoadError(PluginError):
    pass


class PluginMismatch(PluginError):
    pass


class PluginFailed(PluginError):
    pass


class RunError(AsyncrlError):
    pass


class BooksError(RunError):
    pass


class EngineError(RunError):
    pass


class EngineFault(EngineError):
    """One call to one engine failed in a way that another try may cure. `unreachable`: nothing answers at its address."""

    unreachable: bool = False


class RequestFailed(EngineError):
    pass


class EnginesLost(EngineError):
    pass


class PublicationError(RunError):
    pass


class TrainerError(RunError):
    pass


class TrainerLost(RunError):
    pass


class CheckpointError(RunError):
    pass


class ActorLost(RunError):
    pass


class DeadlineExceeded(RunError):
    pass


class Stopped(RunError):
    pass


class EvalSkip(AsyncrlError):
    """Raised by an eval backend to end a point as a skip; the message is the reason, such as ``unhealthy``."""
