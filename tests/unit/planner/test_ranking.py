"""Layouts of a model on a cluster, by predicted step time."""

import pytest

from pipeline.__main__ import main
from pipeline.errors import StudyError
from pipeline.planner.ranking import Cluster, gigabits, rank, table
from pipeline.planner.sizes import size_of

CLUSTER = Cluster("a100-80", 80, 4, 8, 200.0)


def test_the_first_is_the_simplest_that_may_be_fastest() -> None:
    found = rank(size_of("1.3B"), CLUSTER, 512, "bf16")
    fastest = min(found, key=lambda one: one.prediction.seconds)
    assert found[0].band[0] <= fastest.prediction.seconds
    assert [one.prediction.seconds for one in found[1:]] == sorted(
        one.prediction.seconds for one in found[1:]
    )
    assert all(one.parts >= found[0].parts for one in found if one.band[0] <= fastest.band[1] * 0)


def test_a_slow_link_keeps_tensors_inside_and_a_large_model_is_cut() -> None:
    slow = rank(size_of("6.7B"), Cluster("a100-80", 80, 4, 8, 10.0), 512, "bf16")
    assert slow[0].job.dp < 32
    large = rank(size_of("175B"), Cluster("a100-80", 80, 128, 8, 1600.0), 1536, "bf16")
    assert all(one.job.tp * one.job.pp > 1 or one.job.zero == 3 for one in large)


def test_what_fits_nowhere_says_what_the_least_needs() -> None:
    with pytest.raises(StudyError, match=r"no layout of 175B fits 1 x 8 GPUs of 16 GiB: the least"):
        rank(size_of("175B"), Cluster("v100-16", 16, 1, 8, 0.0), 512, "fp16")


def test_the_table_says_that_it_is_a_prediction(capsys) -> None:
    command = "plan --model 1.3B --nodes 4 --device a100-80 --link 200gbit"
    assert main(command.split()) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == table(rank(size_of("1.3B"), CLUSTER, 512, "bf16"))
    assert printed[-1].startswith("Predicted, nothing is measured")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--model 1.3B", "--model needs --device"),
        ("--model 1.3B --nodes 2 --device a100-80", "--model needs --link"),
        ("--model 1.3B --device v100-16", "no data sheet rate in bfloat16"),
        ("--model 1.3B --device a100-80 --devices 8", "belong to --model-sizes"),
        ("--model-sizes --nodes 2", "--nodes belongs to --model"),
        ("--model 1.3B --nodes 2 --device a100-80 --link fast", "link 'fast' is no rate"),
    ],
)
def test_what_is_missing_is_named(words, error, capsys) -> None:
    assert main(["plan", *words.split()]) == 2
    assert error in capsys.readouterr().err


def test_rates_of_links() -> None:
    assert (gigabits("200gbit"), gigabits("500 Mbit/s")) == (200.0, 0.5)
