"""Run records on disk: `run.json` and `steps.jsonl` in the folder of a run.

Both are validated by their JSON Schema when written and when read. `write_record` writes the steps
first and `run.json` last, each under a temporary name, so a folder with a `run.json` is complete.
"""

from pipeline.records.record import (
    RunRecord,
    Step,
    find_records,
    read_record,
    spec_to_write,
    write_record,
)

__all__ = ["RunRecord", "Step", "find_records", "read_record", "spec_to_write", "write_record"]
