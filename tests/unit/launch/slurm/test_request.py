"""What a run asks of a scheduler."""

import pytest

from pipeline.launch.slurm.request import allocation, request
from pipeline.machine.site import Site
from pipeline.planner.memory import predict
from tests.fake_records import shipped

HERE = Site()


def test_nodes_on_the_loopback_are_one_machine() -> None:
    four = request(shipped("smoke", "dps", 4), HERE)
    assert (four.nodes, four.gpus, four.slurm_extra) == (1, 0, "--exclusive --signal=B:USR1@120")
    assert four.memory_mb > request(shipped("smoke", "dps", 1), HERE).memory_mb


def test_more_memory_is_asked_for_than_is_predicted() -> None:
    for cell, nodes in (("single", 1), ("sps", 1), ("dps", 1), ("dps-amp", 4)):
        run = shipped("smoke", cell, nodes)
        assert request(run, HERE).memory_mb * 2**20 > 2 * predict(run).peak


@pytest.mark.parametrize(
    ("site", "extra", "gres", "cpus", "srun"),
    [
        (Site(gpus="--gpus-per-node=a100:N"), "--exclusive --gpus-per-node=a100:4", "", -1, None),
        (Site(gpus="--gres=gpu:h100:N"), "--exclusive", "gpu:h100:4", -1, "--gres=gpu:h100:4"),
        (Site(cpus_per_node=16), "--gpus-per-node=4", "", 16, None),
    ],
)
def test_a_site_says_how_gpus_and_cores_are_asked_for(site, extra, gres, cpus, srun) -> None:
    asked = request(shipped("bai2022", "dps", 2), site)
    assert (asked.slurm_extra, asked.gres) == (f"{extra} --signal=B:USR1@120", gres)
    assert asked.cpus == cpus and (srun is None or srun in asked.srun)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (HERE, "--nodes=2 --mem=0 --exclusive --gpus-per-node=4"),
        (
            Site(partition="gpu", account="me", qos="long", constraint="a&b", max_minutes=500,
                 gpus="--gres=gpu:N"),
            "--nodes=2 --partition=gpu --account=me --qos=long --constraint=a&b --time=500 --mem=0 "
            "--exclusive --gres=gpu:4",
        ),
        (
            Site(cpus_per_node=16, max_minutes=10**6),
            "--nodes=2 --time=740 --cpus-per-task=16 --ntasks-per-node=1 --mem=36864 "
            "--gpus-per-node=4",
        ),
    ],
)  # fmt: skip
def test_an_allocation_holds_the_most_that_its_runs_ask_for(site, words) -> None:
    runs = [shipped("bai2022", cell, nodes) for cell, nodes in (("dps", 2), ("dps", 2))]
    requests = [request(run, site) for run in runs]
    assert allocation(site, 2, requests) == ("sbatch", *words.split())
    assert {one.minutes for one in requests} == {min(370, site.max_minutes or 370)}
