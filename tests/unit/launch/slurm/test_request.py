"""What a run asks of a scheduler."""

from dataclasses import replace
from pathlib import Path

from pipeline.launch.slurm.request import request
from pipeline.planner.memory import predict
from pipeline.resolved import ResolvedRun, resolve
from pipeline.study.expansion import expand
from pipeline.study.load import load_study


def run_of(study: str, cell: str, nodes: int) -> ResolvedRun:
    runs = expand(load_study(Path(f"workflow/config/{study}/study.yaml")))
    return resolve(next(r for r in runs if r.cell == cell and r.world.nodes == nodes))


def test_gpus_and_nodes_are_those_of_the_spec() -> None:
    two = request(run_of("bai2022", "horovod-apex", 2))
    assert (two.nodes, two.gpus) == (2, 4)
    assert two.slurm_extra == "--exclusive --gpus-per-node=4 --signal=B:USR1@120"
    assert two.srun[0] == "srun"
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4"} <= set(two.srun)
    one = request(run_of("bai2022", "single", 1))
    assert (one.nodes, one.gpus) == (1, 1)


def test_one_process_may_own_all_gpus_of_its_node() -> None:
    assert request(run_of("bai2022", "sps", 1)).gpus == 4


def test_nodes_on_the_loopback_are_one_machine() -> None:
    four = request(run_of("smoke", "dps", 4))
    assert (four.nodes, four.gpus, four.slurm_extra) == (1, 0, "--exclusive --signal=B:USR1@120")
    assert four.memory_mb > request(run_of("smoke", "dps", 1)).memory_mb


def test_the_scheduler_s_limit_comes_after_the_run_s_own() -> None:
    run = run_of("bai2022", "dps", 2)
    assert request(run).minutes * 60 > run.spec.timeout_seconds
    assert request(replace(run, spec=replace(run.spec, timeout_seconds=61))).minutes == 12


def test_more_memory_is_asked_for_than_is_predicted() -> None:
    for cell, nodes in (("single", 1), ("sps", 1), ("dps", 1), ("dps-amp", 4)):
        run = run_of("smoke", cell, nodes)
        assert request(run).memory_mb * 2**20 > 2 * predict(run.spec).peak
