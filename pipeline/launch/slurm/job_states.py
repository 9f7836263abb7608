"""States of jobs that SLURM ended, in words on which Snakemake's executor sends each job again.

Version 2.8.0 of the executor waits forever for a job that was preempted (SLURM is to resume it,
which the profile's `slurm-no-requeue` forbids) and for one that sacct calls `CANCELLED by 1000`.
After a NODE_FAIL it keeps all nodes of that job, the good ones too, out of all later jobs; SLURM by
itself keeps a node that is down out of new jobs. Told that such a job failed, it sends it again, as
often as `retries` says, and the run resumes from its last checkpoint. And it waits in silence where
sacct has no database to ask. None of its settings changes how it takes a state, so its query is
replaced; a test holds the name of the query against the installed version.
"""

from __future__ import annotations

from functools import cache
from logging import Logger
from typing import Any

ENDED = {"PREEMPTED": "CANCELLED", "NODE_FAIL": "FAILED"}
"""State of SLURM -> state for the executor, with which it does not wait or exclude nodes."""


def send_again(executor: Any) -> None:
    """Have the executor (its module) take these states for an end; each is logged once."""
    query = executor.query_job_status

    @cache
    def warn_once(text: str, logger: Logger) -> None:
        logger.warning(text)

    async def ask(command: str, logger: Logger) -> tuple[dict[str, str] | None, float | None]:
        """States of the jobs by their numbers, None where SLURM did not answer, and seconds."""
        states, seconds = await query(command, logger)
        if states is None:
            warn_once(
                f"{command.split()[0]} does not say how the jobs stand, and until it does none of "
                "them is seen to end; on a cluster without an accounting database set "
                "`accounting: false` in workflow/site.yaml",
                logger,
            )
            return None, seconds
        # sacct adds who cancelled a job
        short = {job: state.partition(" ")[0] for job, state in states.items()}
        for job, state in short.items():
            if state in ENDED:
                text = f"SLURM job {job} ended with {state}: it is sent again if retries are left"
                warn_once(text, logger)
        return {job: ENDED.get(state, state) for job, state in short.items()}, seconds

    executor.query_job_status = ask
