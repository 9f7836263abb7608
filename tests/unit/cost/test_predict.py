"""The model of a step: what a change of a job does, schedules, collectives, cuts of operators."""

from dataclasses import asdict, replace
from itertools import combinations, pairwise, product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cost.communication import Network, RankGroup
from pipeline.cost.constants import Constants
from pipeline.cost.devices import device_of
from pipeline.cost.job import Job, Refused, jobs_of
from pipeline.cost.memory import parts
from pipeline.cost.points import read
from pipeline.cost.predict import Model, Prediction, on_gpus, predict
from pipeline.cost.schedule import ROUNDS, even, exposed, order, pipelined, stages
from pipeline.cost.score import FOLDER
from pipeline.cost.sharding import Chain, Choice
from pipeline.cost.traffic import Traffic, ring
from pipeline.metrics.bubble import makespan
from pipeline.models import num_parameters
from pipeline.parallel.mesh import Degrees
from pipeline.planner.ranking import Cluster, job_of
from pipeline.planner.sizes import size_of
from pipeline.study.profiling import BACKWARD, FORWARD, WEIGHTS

ROW = next(row for row in read(FOLDER / "llmfoundry.csv") if row["model"] == "mpt-1b")
JOB = replace(jobs_of(ROW)[0], zero=0, seq=2048, micro=4, accum=8, recompute="none")
MANY = {"gpus": 64, "dp": 64, "node_net_gbps": 1600}


def of(job: Job = JOB, **changes) -> Prediction:
    return predict(replace(job, **changes), Constants())


def kept(**changes) -> dict[str, float]:
    """Bytes of the first stage, part by part."""
    model = Model(replace(JOB, **changes), Constants())
    return parts(model.job, model.profile, model.layers[0], 0, model.device.element)


@pytest.mark.parametrize(
    ("part", "before", "after", "least", "most"),
    [
        ("computation", {}, {"accum": 16}, 2, 2),
        ("computation", {}, {"recompute": "full"}, 1.26, 1.41),
        ("computation", {}, {"kv_heads": 2}, 0, 0.999),
        ("computation", {}, {"gated": True}, 1.001, inf),
        ("computation", {"precision": "bf16"}, {"precision": "tf32"}, 1.001, inf),
        ("computation", {"precision": "tf32"}, {"precision": "fp32"}, 1.001, inf),
        # All wait for the slowest of the devices.
        ("computation", MANY | {"gpus": 1, "dp": 1}, {"gpus": 512, "dp": 512}, 1.01, 1.06),
        ("communication", MANY, {"node_net_gbps": 10}, 5, inf),
        ("seconds", {}, {"node_net_gbps": 10}, 1, 1),  # of one node
        # Autocast reduces gradients in fp32.
        ("communication", MANY | {"framework": "x", "accum": 1, "node_net_gbps": 100,
                                  "precision": "fp16"}, {"precision": "fp16 amp"}, 1.9, inf),
        ("kept activations", {}, {"recompute": "full"}, 0, 0.4),
        ("kept logits", {}, {"bert": True}, 0.15, 0.15),
        ("kept weights", {}, {"tied": False}, 1.001, inf),
        ("kept weights", {}, {"zero": 1}, 1, 1),
        ("kept weights", {}, {"zero": 3}, 0, 0.999),
        ("kept optimiser", {}, {"zero": 1}, 1 / 8, 1 / 8),
        ("kept gradients", {}, {"zero": 3}, 1 / 8, 1 / 8),
    ],
)  # fmt: skip
def test_a_change_has_its_effect(part, before, after, least, most) -> None:
    """The ratio of a part of the step, or of the memory, after a change to that before."""
    values = []
    for changes in (before, before | after):
        step, memory = of(**changes), kept(**changes)
        of_memory = {f"kept {name}": size for name, size in memory.items()}
        values.append({**asdict(step), "seconds": step.seconds, **of_memory}[part])
    assert least * (1 - 1e-6) <= values[1] / values[0] <= most * (1 + 1e-6)


def test_the_parts_of_the_memory_add_up() -> None:
    assert sum(kept().values()) == of().memory


def test_a_small_micro_batch_waits_for_the_host() -> None:
    small = of(micro=1, seq=128, layers=48, hidden=512, ffn=2048, heads=8)
    assert small.host > small.computation
    assert of(micro=32).host < 0.02 * of(micro=32).seconds


def test_a_pipeline_has_a_bubble() -> None:
    piped = of(pp=4, dp=2)
    assert piped.bubble / (piped.seconds - piped.bubble) == pytest.approx(3 / 8, abs=0.12)
    assert of().bubble == 0


def test_gpipe_keeps_the_activations_of_all_micro_batches() -> None:
    first, all_of_them = (kept(pp=4, dp=2, schedule=name) for name in ("1f1b", "gpipe"))
    assert all_of_them["activations"] == pytest.approx(8 / 4 * first["activations"])


def test_zero_bubble_leaves_less_of_it_and_gpipe_as_much_as_1f1b() -> None:
    bubbles = {name: of(pp=4, dp=2, accum=8.0, schedule=name).bubble
               for name in ("1f1b", "gpipe", "zero_bubble")}  # fmt: skip
    assert bubbles["gpipe"] == pytest.approx(bubbles["1f1b"], rel=0.1)
    assert bubbles["zero_bubble"] < 0.6 * bubbles["1f1b"]


def test_layers_of_each_chunk_are_those_that_are_stated() -> None:
    uneven = of(pp=2, dp=4, vpp=2, layers=8, counts=(3, 2, 2, 1))
    assert Model(replace(JOB, pp=2, vpp=2, counts=(3, 2, 2, 1)), Constants()).layers == (3, 2, 2, 1)
    assert uneven.bubble > of(pp=2, dp=4, vpp=2, layers=8).bubble


def test_more_stages_than_are_replayed_are_refused() -> None:
    with pytest.raises(Refused, match="257 stages are not modelled; of at most 256 the passes"):
        of(pp=257, layers=300)


def test_a_tied_table_is_added_up_between_both_ends() -> None:
    tied, untied = (of(pp=8, dp=1, gpus=8, tied=tied, gpus_per_node=1, node_net_gbps=10.0)
                    for tied in (True, False))  # fmt: skip
    assert tied.communication > untied.communication


def test_no_more_than_all_but_the_last_bucket_is_hidden() -> None:
    assert exposed(10.0, 100.0, 5) == 2.0
    assert exposed(10.0, 100.0, 5, last=0.5) == 5.0, "the embedding's gradient comes last"
    assert exposed(10.0, 4.0, 5, last=0.1) == pytest.approx(10 - 4 * 4 / 5)


def test_a_host_that_runs_ahead_hides_behind_the_update() -> None:
    ours = jobs_of(read(FOLDER / "samestep_h200.csv")[0])[0]
    known = of(ours)
    assert known.host > 0
    assert of(ours, framework="other").host > known.host + 0.005
    queued = known.host + known.optimiser + known.computation
    assert queued == pytest.approx(1e-6 * (2 * 1800 + 1500))


SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero_bubble": 1}


def measured(schedule, ranks, forward, backward, count):
    """Seconds of these passes as the bubble of a profiled run has them."""
    parts = 2 if schedule == "zero_bubble" else 1
    seconds = {FORWARD: forward, BACKWARD: [b / parts for b in backward]}
    seconds[WEIGHTS] = seconds[BACKWARD]
    lines = {
        rank: [(*one, seconds[one[0]][one[1]])
               for one in order(schedule, ranks, len(forward) // ranks, count, rank)]
        for rank in range(ranks)
    }  # fmt: skip
    return makespan(lines)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(st.integers(1, 4), st.integers(1, 2 * ROUNDS), st.data())
@settings(max_examples=25)
def test_a_predicted_step_takes_what_its_passes_take_as_if_they_were_measured(
    schedule, ranks, rounds, data
) -> None:
    stage = st.lists(st.floats(0.8, 2), min_size=ranks * SCHEDULES[schedule],
                     max_size=ranks * SCHEDULES[schedule])  # fmt: skip
    forward, backward = data.draw(stage), data.draw(stage)
    count = ranks * rounds
    exact = measured(schedule, ranks, forward, backward, count)
    # Rounds beyond those that are replayed are like the last one.
    within = 1e-9 if rounds <= ROUNDS else 0.01
    assert pipelined(schedule, ranks, forward, backward, count) == pytest.approx(exact, rel=within)


@pytest.mark.parametrize("count", [4, 5, 16, 64])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_even_stages_take_what_the_closed_form_says(ranks, count) -> None:
    for schedule in ("gpipe", "1f1b"):
        seconds = pipelined(schedule, ranks, [1.0] * ranks, [2.0] * ranks, count)
        assert seconds == pytest.approx(3.0 * (count + ranks - 1))
    if count % ranks == 0:
        stages_of = 2 * ranks
        seconds = pipelined("interleaved", ranks, [0.5] * stages_of, [1.0] * stages_of, count)
        assert seconds == pytest.approx(3.0 * (count + (ranks - 1) / 2))


def test_a_slow_last_stage_costs_more_than_a_slow_first_one() -> None:
    """A closed form gives both 81 s: a micro-batch through the others, and all through this one.

    A slow first stage has four forward passes to do before it first waits for a gradient.
    """
    for place, expected in ((0, 76.5), (3, 81.0)):
        forward = [1.0 + (stage == place) / 2 for stage in range(4)]
        backward = [2 * each for each in forward]
        assert pipelined("1f1b", 4, forward, backward, 16) == pytest.approx(expected)


def test_a_part_of_a_micro_batch_and_a_part_of_a_round_take_their_share() -> None:
    whole, more = (pipelined("1f1b", 4, [1.0] * 4, [2.0] * 4, count) for count in (8, 8.5))
    assert more - whole == pytest.approx(1.5)
    cut = [pipelined("interleaved", 4, [0.5] * 8, [1.0] * 8, count) for count in (8, 11)]
    assert cut[1] - cut[0] == pytest.approx(9.0)


def test_layers_of_stages() -> None:
    assert stages(78, 12, 1.0, balance=False) == [6] * 3 + [7] * 6 + [6] * 3
    assert stages(32, 4, 0.0, balance=True) == [8, 8, 8, 8]
    assert stages(32, 4, 4.0, balance=True) == [9, 9, 9, 5]
    assert stages(16, 8, 4.0, balance=True) == [3, 2, 3, 2, 3, 2, 1, 0]
    assert stages(5, 1, 4.0, balance=True) == [5]


def slowest(seconds, sizes):
    """Seconds of the slowest of stages of so many layers."""
    ends = [0, *(sum(sizes[: n + 1]) for n in range(len(sizes)))]
    return max(sum(seconds[a:b]) for a, b in pairwise(ends))


LAYERS = st.lists(st.sampled_from([1.0, 2.5]) | st.floats(0, 9), min_size=1, max_size=9)


@given(LAYERS, st.data())
def test_stages_cut_by_dynamic_programming_are_the_best_of_all(seconds, data) -> None:
    count = data.draw(st.integers(1, len(seconds)))
    sizes = even(tuple(seconds), count)
    assert (len(sizes), sum(sizes)) == (count, len(seconds)) and min(sizes) > 0
    every = combinations(range(1, len(seconds)), count - 1)
    cuts = [[b - a for a, b in pairwise((0, *cut, len(seconds)))] for cut in every]
    assert slowest(seconds, sizes) <= min(slowest(seconds, cut) for cut in cuts) + 1e-9


def test_a_stage_with_the_output_layer_has_fewer_layers() -> None:
    assert even((1.0,) * 23 + (5.0,), 4) == (7, 7, 7, 3)
    assert even((1.0,) * 7, 3) == (3, 2, 2), "where all are alike the first ones have more"
    with pytest.raises(ValueError, match="2 layers do not make 3 stages"):
        even((1.0, 1.0), 3)


def network(**changes):
    row = read(FOLDER / "seqsel2022_a100.csv")[2] | changes
    (job,) = jobs_of(row)
    return Network(job, device_of(job, Constants()))


def test_groups_lie_on_nodes_as_their_stride_says() -> None:
    assert RankGroup.of(8, 1, 8) == RankGroup(8, 8, 1)
    assert RankGroup.of(16, 1, 8) == RankGroup(16, 8, 2)
    assert RankGroup.of(16, 2, 8) == RankGroup(16, 4, 4)
    assert RankGroup.of(4, 8, 8) == RankGroup(4, 1, 4)


def test_a_ring_inside_a_node_moves_twice_its_share() -> None:
    net = network()
    size, group = 1e9, net.groups["tensor"]
    assert group == RankGroup(8, 8, 1)
    expected = 2 * 7 / 8 * size / net.link_rate(group)
    assert net.all_reduce("tensor", size) == pytest.approx(expected, rel=0.02)
    assert net.gather("tensor", size) == pytest.approx(expected / 2, rel=0.02)
    assert net.all_reduce("data", size) == 0, "one rank alone"


def test_bytes_of_a_strategy_are_priced_as_collectives_of_so_many() -> None:
    net = network(gpus="64", dp="64", tp="1", pp="1", vpp="1")
    few, many = (
        Traffic("data", "2(n-1)/n G", 2 * ring(1e9, 64), messages=count) for count in (1, 100)
    )
    assert net.seconds(few) == net.all_reduce("data", 1e9)
    one_hop = 1e-6 * net.device.constants["network_us"]
    assert net.seconds(many) > net.seconds(few) + 99 * one_hop


def test_ends_of_a_pipeline_are_a_pair_that_shares_cards() -> None:
    net = network()
    assert net.job.pp == 8
    assert net.groups["ends"] == RankGroup(2, 1, 2)
    assert network(gpus="8", tp="2", pp="4", vpp="1").groups["ends"] == RankGroup(2, 2, 1)
    assert network(pp="1", gpus="8").groups["ends"].size == 1


def test_groups_of_a_node_share_its_cards() -> None:
    net = network()
    alone, shared = RankGroup(16, 8, 2), RankGroup(2, 1, 2)
    assert net.node_rate(alone) == pytest.approx(8 * net.node_rate(shared))
    assert net.node_rate(shared) <= 1e9 / 8 * 1600 / 8


def test_stages_send_over_the_network_where_nodes_end() -> None:
    inside, crossing = set(), set()
    for stride in (1, 2, 8):
        net = network(gpus="16", pp=str(16 // stride), tp=str(stride), vpp="1", node_net_gbps="10")
        assert (net.job.gpus_per_node, net.job.dp) == (8, 1)
        sends = net.sends(1e9 / stride)
        border = 8 // stride - 1
        crossing |= {sends[border], sends[-1]}
        inside |= {each for each in sends[:border]}
    # However many of a node send, its cards have the same bytes to move.
    assert max(crossing) == pytest.approx(min(crossing))
    assert max(inside) < 0.1 * min(crossing)


def test_more_nodes_take_longer_and_a_card_is_slower_than_all() -> None:
    few, many = (
        network(gpus=str(n), dp=str(n), tp="1", pp="1", vpp="1", global_batch="512")
        for n in (16, 512)
    )
    assert few.all_reduce("data", 1e9) < many.all_reduce("data", 1e9)
    assert few.gather("data", 1e9) < few.gather("data", 1e9, card_share=1.0)


def test_two_ranks_of_a_mesh_have_some_of_its_links() -> None:
    mesh = network(hardware="V100-SXM2-16GB", device_gib="16")
    assert mesh.link_rate(RankGroup(2, 2, 1)) < 0.4 * mesh.link_rate(RankGroup(8, 8, 1))


SECONDS = st.floats(1e-6, 1e-2) | st.sampled_from([0.0, 1e-4, 2e-4])


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Up to five operators of up to three choices each; also such that cost the same."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    choices = [
        [Choice(str(n), draw(SECONDS), draw(st.integers(1, 9))) for n in range(count)]
        for count in counts
    ]
    moves = [
        [[draw(SECONDS) for _ in range(after)] for _ in range(before)]
        for before, after in pairwise(counts)
    ]
    return Chain(choices, moves)


@given(chains(), st.integers(1, 40) | st.just(None))
def test_the_optimum_is_that_of_exhaustive_search(chain, most) -> None:
    limit = inf if most is None else most + 0.5
    every = product(*(range(len(each)) for each in chain.choices))
    fitting = [picks for picks in every if chain.kept(picks) <= limit]
    found = chain.cheapest(limit)
    if not fitting:
        assert found is None
        return
    assert found is not None and chain.kept(found) <= limit
    assert chain.seconds(found) <= min(map(chain.seconds, fitting)) + 1e-9


def test_on_gpus_a_cut_costs_what_links_and_products_do() -> None:
    """Within a node a ring is faster than over 10 Gbit/s; a half of a product is half as long."""
    size = size_of("1.3B")
    prices, steps = [], []
    for nodes, gpus in ((1, 8), (8, 1)):
        cluster = Cluster("a100-80", 80, nodes, gpus, 10.0)
        job = job_of(size, cluster, nodes, Degrees(4, 2, microbatches=8), 64, "bf16", False)
        whole, each = on_gpus(job, Constants(), num_parameters(size.model))
        prices.append(each)
        steps.append((whole, predict(job, Constants())))
    near, far = prices
    assert (near.ranks, near.pieces) == (2, 8)
    assert near.all_reduce(10**7) < far.all_reduce(10**7) / 10
    assert near.gather(10**7) < near.all_reduce(10**7)
    assert 0.45 < near.product(4096, 8192, 4096) / near.product(4096, 8192, 8192) < 0.55
    for whole, cut in steps:
        assert whole.computation > 1.5 * cut.computation, "each of two ranks does all of it"
