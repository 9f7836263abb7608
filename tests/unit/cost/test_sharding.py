"""The cheapest cuts of a chain of operators."""

from itertools import pairwise, product
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cost.constants import Constants
from pipeline.cost.predict import on_gpus, predict
from pipeline.cost.sharding import Chain, Choice
from pipeline.models import num_parameters
from pipeline.parallel.mesh import Degrees
from pipeline.planner.ranking import Cluster, job_of
from pipeline.planner.sizes import size_of

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


@settings(deadline=None)
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
