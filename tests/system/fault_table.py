"""The faults that runs are put through, as rows: what happens, and what has to come of it.

`docs/reliability.md` is made of these rows and of what `--write-faults` measured.
"""

from dataclasses import dataclass
from pathlib import Path

MEASURED = Path(__file__).parents[2] / "bench" / "results" / "faults.json"

ITSELF, NEXT = "by itself", "at the next start"
NO_RECORD = "none"


@dataclass(frozen=True)
class Fault:
    """One row. `fault` names what `fault_stage` does, `words` say it to a reader.

    `exit_status` is that of the start in which it happens, `record` the status that it leaves, and
    `says` an expression that its reason or its output has. `again` says how the run starts again.
    `done` are the steps when the fault comes, with a checkpoint each 5, and `resumed_from` those of
    the checkpoint that is then used.
    """

    words: str
    fault: str
    exit_status: int
    record: str
    says: str = ""
    again: str = NEXT
    resumed_from: int = 10
    rank: int = 1
    often: bool = False
    damage: str = ""
    done: int = 13


def _itself(words: str, fault: str, says: str, rank: int = 1) -> Fault:
    return Fault(words, fault, 0, "ok", says, ITSELF, rank=rank)


def _harmless(words: str, fault: str) -> Fault:
    return Fault(words, fault, 0, "ok", "", ITSELF, resumed_from=0, done=0)


def _refused(words: str, fault: str, says: str, resumed_from: int = 10, done: int = 13) -> Fault:
    return Fault(words, fault, 2, NO_RECORD, says, resumed_from=resumed_from, done=done)


def _damaged(words: str, damage: str, says: str, resumed_from: int = 5) -> Fault:
    words = f"the stage is killed, and {words}"
    return Fault(words, "stage killed", -9, NO_RECORD, says, NEXT, resumed_from, damage=damage)


SIGNAL = r"killed by signal {}\b"
OUT_OF_TIME = "not done after timeout_seconds"
TAKEN_OVER = "a later start of this run took over"
CHANGED = "its tokens changed while it trained, no record: .*"

FAULTS: dict[str, Fault] = {
    "rank-9": _itself("a rank is killed (signal 9)", "rank killed", SIGNAL.format(9)),
    "rank0-9": _itself("rank 0 is killed (signal 9)", "rank killed", SIGNAL.format(9), rank=0),
    "rank-15": _itself("a rank is ended (signal 15)", "rank ended", SIGNAL.format(15)),
    "rank-11": _itself("a rank crashes (signal 11)", "rank crashed", SIGNAL.format(11)),
    "rank-9-thrice": Fault("a rank is killed in each of three attempts",
                           "rank killed", 0, "failed", SIGNAL.format(9), often=True),
    "rank-stop": Fault("a rank is stopped (SIGSTOP)", "rank stopped", 0, "timeout", OUT_OF_TIME),
    "rank-hang": Fault("a rank waits for ever", "rank waits", 0, "timeout", OUT_OF_TIME),
    "rank-raise": Fault("a rank raises an error",
                        "rank raises", 0, "failed", "ZeroDivisionError: division by zero"),
    "rank-memory": Fault("a rank gets no memory", "rank out of memory", 0, "oom", "MemoryError"),
    "peer-lost": _itself("a rank loses its peer", "peer lost", "by peer"),
    "launcher-9": _itself("a launcher is killed (signal 9)", "launcher killed", SIGNAL.format(9)),
    "launcher-15": _itself("a launcher is ended (signal 15)", "launcher ended", SIGNAL.format(15)),
    "launcher-137": _itself(
        "a launcher ends with status 137, as a container's does that ran out of memory",
        "launcher 137", SIGNAL.format(9)),
    "launcher-stop": Fault("a launcher is stopped (SIGSTOP)",
                           "launcher stopped", 0, "timeout", OUT_OF_TIME),
    "stage-9": Fault("the stage is killed (signal 9)", "stage killed", -9, NO_RECORD),
    "stage-15": Fault("the stage is ended (signal 15)",
                      "stage ended", 143, NO_RECORD, "interrupted"),
    "stage-stop": _refused("the stage is stopped (SIGSTOP), and the run is started a second time",
                           "stage stopped", TAKEN_OVER),
    "full-step": _refused("the disk is full when a step is written",
                          "full at a step", "No space left"),
    "full-checkpoint": _refused("the disk is full when a checkpoint is written",
                                "full at a checkpoint", "could not write checkpoint .* free space",
                                done=15),
    "full-record": _refused("the disk is full when the record is written",
                            "full at the record", "could not write .*run.json: No space left",
                            15, 20),
    "read-only-record": _refused("the folder cannot be written when the record is",
                                 "read-only at the record",
                                 "could not write .*run.json: Read-only", 15, 20),
    "folder-removed": _refused("the folder of the run is removed under it", "folder removed",
                               "the folder of this run was removed or emptied under it", 0),
    "tokens-removed": _refused("the tokens are removed under a run",
                               "tokens removed", f"{CHANGED}does not exist", 15, 20),
    "tokens-changed": _refused("a token is changed under a run",
                               "tokens changed", f"{CHANGED}expected", 0, 20),
    "two-starts": _refused("the run is started a second time while it trains",
                           "waits for another start", TAKEN_OVER),
    "cut": _damaged("its newest checkpoint is cut", "cut", "damaged"),
    "bit": _damaged("a bit of its newest checkpoint is turned", "bit", "damaged"),
    "empty": _damaged("its newest checkpoint is empty", "empty", "damaged"),
    "shapes": _damaged("its newest checkpoint has other shapes", "shapes", "damaged"),
    "foreign": _damaged("its newest checkpoint is another file", "foreign", "damaged"),
    "all": _damaged("both of its checkpoints are damaged", "all", "the run starts anew", 0),
    "steps": _damaged("a line of its steps is damaged", "steps", "rank0.steps ends at step 7"),
    "stale-lock": _damaged("its lock is left", "lock", "", 10),
    "port-taken": _harmless("the port where ranks meet is taken before its use", "port taken"),
    "clock": _harmless("the clock is set back by an hour", "marked"),
}  # fmt: skip
"""On two ranks of the loopback, in `test_faults.py`."""

LATER = ("two-starts", "stage-stop")
"""Those in which the next start begins while the first one is there."""

REAL: dict[str, str] = {
    "real-rank-9": "a rank below a real torchrun is killed (signal 9)",
    "real-torchrun-9": "a real torchrun is killed (signal 9)",
    "real-torchrun-15": "a real torchrun is ended (signal 15)",
    "preloaded-9": "emulated: the preloaded process is killed",
    "guard-9": "emulated: the guard of a run is killed",
    "run-9": "emulated: the process that built the nodes is killed",
    "node-rank-9": "emulated: the rank of a node is killed",
    "node-rank-15": "emulated: the rank of a node is ended (signal 15)",
    "real-torchrun-stop": "a real torchrun is stopped (SIGSTOP)",
}
"""With real launchers and on emulated nodes, in `test_killed.py`."""
