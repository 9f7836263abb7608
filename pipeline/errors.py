"""Every error that Samestep raises on purpose.

Each message is one line: the value given, what was expected, and the fix.
"""

from __future__ import annotations

from collections.abc import Iterable


class SamestepError(Exception):
    """Base of all expected errors; the CLI prints it as one line and exits with status 2."""


def refuse(error: type[SamestepError], where: str, faults: Iterable[tuple[object, str]]) -> None:
    """Raise the first fault that is there, each (is there, message), with `where` before it."""
    for is_there, fault in faults:
        if is_there:
            raise error(where + fault)


class StudyError(SamestepError):
    """A study file or a run spec asks for something impossible."""


class CorpusError(SamestepError):
    """Text, tokeniser, token shards or their manifest are not what they should be."""


class RecordError(SamestepError):
    """A record fails its schema or contradicts its spec."""


class ComparisonError(SamestepError):
    """Two runs are compared that did not do equal work."""


class ClaimError(SamestepError):
    """Published claims or published figures are not what they should be."""


class PredictionError(SamestepError):
    """Constants, points or options of a prediction that cannot be."""


class ArchiveError(SamestepError):
    """A study cannot be packed, or an archive is damaged, incomplete or not one of ours."""


class LaunchError(SamestepError):
    """Ranks could not be started, or came up with another world than the spec states."""


class LostError(SamestepError):
    """An allocated node disappeared; restart the run to resume from its checkpoint."""


class StoppedError(SamestepError):
    """The job was asked to end, and its run keeps a checkpoint to go on from."""


class PeerError(SamestepError):
    """Another rank failed in what all do together; its own error says why."""


class DisturbedError(SamestepError):
    """Other programs had the machine; recorded with its reason, and tried again."""


class StrategyError(SamestepError):
    """A strategy sends what is neither timed nor counted; its run is recorded as failed."""


class UnsupportedError(SamestepError):
    """The cell cannot run on this machine; recorded with its reason, never substituted."""


class MissingError(UnsupportedError):
    """A package that the cell needs is missing; tried again when it is there."""


def without_fix(error: Exception) -> str:
    """The message without its fix, in place of which another is due: what stands last, after `; `.

    A fix for a file that people write is none for the product's own.
    """
    text = " ".join(str(error).split())
    return text.rpartition("; ")[0] or text
