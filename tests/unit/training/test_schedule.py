"""Learning-rate schedule."""

from pipeline.study.spec import OptimiserSpec
from pipeline.training.schedule import learning_rate


def spec(schedule: str, warmup_steps: int = 4) -> OptimiserSpec:
    return OptimiserSpec("adamw", 1.0, 0.9, 0.999, 1e-8, 0.0, 1.0, schedule, warmup_steps)


def test_warm_up_is_linear_and_reaches_the_full_rate() -> None:
    assert [learning_rate(s, 10, spec("constant")) for s in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_linear_falls_to_almost_zero_at_the_last_step() -> None:
    rates = [learning_rate(s, 10, spec("linear")) for s in range(10)]
    assert rates[4] == 1.0
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[9] == 1 / 6


def test_no_warm_up_starts_at_the_full_rate() -> None:
    assert learning_rate(0, 10, spec("constant", warmup_steps=0)) == 1.0
