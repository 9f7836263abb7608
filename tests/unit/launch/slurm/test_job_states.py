"""States of SLURM jobs as Snakemake's executor is told of them."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.launch.slurm.job_states import send_again


def executor(states: dict[str, str] | None) -> Any:
    """An executor's module whose query answers `states`."""

    async def query(command: str, logger: logging.Logger) -> tuple[dict[str, str] | None, float]:
        assert command == "squeue"
        return states, 0.5

    made = SimpleNamespace(query_job_status=query)
    send_again(made)
    return made


def ask(made: Any) -> Any:
    return asyncio.run(made.query_job_status("squeue", logging.getLogger("test")))


def test_what_slurm_ended_is_a_failure_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    states = {
        "1": "RUNNING", "2": "PREEMPTED", "3": "NODE_FAIL", "4": "CANCELLED by 1000",
        "5": "COMPLETED",
    }  # fmt: skip
    told = {"1": "RUNNING", "2": "CANCELLED", "3": "FAILED", "4": "CANCELLED", "5": "COMPLETED"}
    made = executor(states)
    assert ask(made) == ask(made) == (told, 0.5)
    first, _ = caplog.messages
    assert first == "SLURM job 2 ended with PREEMPTED: it is sent again if retries are left"


def test_no_answer_stays_none_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    made = executor(None)
    assert ask(made) == ask(made) == (None, 0.5)
    (line,) = caplog.messages
    assert line.startswith("squeue does not say how the jobs stand")
    assert "set `accounting: false` in workflow/site.yaml" in line


def test_the_executor_asks_by_the_name_that_is_replaced() -> None:
    """Another version of the plugin may look up its query elsewhere."""
    plugin = pytest.importorskip("snakemake_executor_plugin_slurm")
    assert "query_job_status" in plugin.Executor.check_active_jobs.__code__.co_names
    assert callable(plugin.query_job_status)
