"""The layout that is chosen for a study."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from pipeline import models
from pipeline.__main__ import main
from pipeline.cost.points import USABLE
from pipeline.errors import StudyError
from pipeline.launch.calibrate.collectives import KINDS
from pipeline.planner import here
from pipeline.planner.auto import choose, run_of
from pipeline.planner.here import Calibration
from pipeline.planner.operators import of_study
from pipeline.planner.ranking import Cluster
from pipeline.resolved import runs_of
from pipeline.study.expansion import expand
from pipeline.study.load import load_study

STUDY = load_study(Path("workflow/config/alpa2022/study.yaml"))
CLUSTER = Cluster("cpu", 4.0, 4, 1, 0.0)


def machine(a_byte: float) -> Calibration:
    """Operators of 1 ns a unit of work, and messages of so many seconds a byte."""
    line = [(1000, 1000 * a_byte), (1_000_000, 1e6 * a_byte)]
    link: str | None = "1gbit"
    times = {(link, n, kind): line for n in (2, 4) for kind in KINDS}
    return Calibration({o: 1e-9 * o.work for o in of_study(runs_of(STUDY))}, times, 1e10)


def test_the_link_decides() -> None:
    fast, slow = (choose(STUDY, CLUSTER, "fp32", machine(rate)) for rate in (1e-12, 1e-5))
    assert (fast[0].cell["strategy"], fast[0].nodes) == ("ddp", 4)
    assert (slow[0].cell["strategy"], slow[0].nodes) == ("single", 1)
    assert len({one.cell["strategy"] for one in fast}) >= 4


def test_of_equal_steps_that_with_fewest_micro_batches_is_taken(monkeypatch) -> None:
    """Where all count as equal each pipeline has as few as it can; where none do, the fastest."""

    def pipelines(equal: float) -> dict[str, tuple[float, float]]:
        monkeypatch.setattr("pipeline.planner.ranking.CALIBRATED", equal)
        ranked = choose(STUDY, CLUSTER, "fp32", machine(1e-9))
        return {one.name: (one.job.accum, one.prediction.seconds)
                for one in ranked if one.job.pp > 1}  # fmt: skip

    fastest, fewest = pipelines(1.0), pipelines(1e9)
    assert fastest.keys() == fewest.keys()
    assert all(fewest[name][0] <= fastest[name][0] for name in fastest)
    assert all(fewest[name][1] >= fastest[name][1] for name in fastest)
    assert fewest != fastest


def test_every_cell_that_is_ranked_runs_in_the_study() -> None:
    for one in choose(STUDY, CLUSTER, "fp32", machine(1e-9)):
        run = run_of(STUDY, one.cell)
        assert run is not None
        assert run.spec.world.nodes == one.nodes


LAYOUTS = load_study(Path("workflow/config/layouts/study.yaml"))


def test_operators_are_cut_where_a_cell_asks_for_it() -> None:
    """By annotations that the study takes as they are, and faster than with nothing cut."""
    machines = [machine(rate) for rate in (1e-12, 1e-4)]
    fast, slow = (choose(LAYOUTS, CLUSTER, "fp32", one) for one in machines)
    assert not any(one.by_operator for one in choose(STUDY, CLUSTER, "fp32", machines[0]))
    cut, uncut = ({one.name: one for one in found if one.by_operator} for found in (fast, slow))
    assert cut.keys() == uncut.keys()
    assert cut.keys() >= {"data 2 x tensor 2, by annotated", "tensor 4, by annotated"}
    assert all(not one.cell["options"]["annotations"] for one in uncut.values())
    for one in cut.values():
        run = run_of(LAYOUTS, one.cell)
        assert run is not None and run.spec.options["annotations"]
        bare = run_of(LAYOUTS, {**one.cell, "options": {"axes": run.spec.options["axes"]}})
        assert bare is not None
        assert one.prediction.seconds < here.predict(bare, machines[0]).seconds


def test_less_memory_cuts_more_operators() -> None:
    """Of a link so slow that no rank sends if it need not."""
    slow, name, most, found = machine(1e-6), "tensor 4, by annotated", 4.0, []
    for _ in range(2):
        cluster = replace(CLUSTER, device_gib=most)
        every = {one.name: one for one in choose(LAYOUTS, cluster, "fp32", slow)}
        found.append(every[name].prediction)
        most = (found[-1].gibibytes - 1e-3) / USABLE
    whole, less = found
    assert less.memory < whole.memory and less.seconds > whole.seconds


def test_blocks_unlike_llama_s_are_refused(monkeypatch) -> None:
    sizes = asdict(models.examples()["OPTForCausalLM"])
    model = {key: value for key, value in sizes.items() if value is not None}
    shapes = {"model.decoder.layers.0.self_attn.q_proj.weight": (32, 32)}
    place = "pipeline.models.transformers.arithmetic.parameter_shapes"
    monkeypatch.setattr(place, lambda model: shapes)
    with pytest.raises(StudyError, match="not know the layers of OPTForCausalLM"):
        choose(STUDY.but(model=model), CLUSTER, "fp32", None)


def test_gpus_are_ranked_by_the_model(capsys) -> None:
    words = "plan --study bai2022 --auto --device v100-16 --link 100gbit"
    assert main(words.split()) == 0
    printed = capsys.readouterr().out
    text = "\n".join(line for line in printed.splitlines() if line.startswith(("-", "  ")))
    (cell,) = yaml.safe_load(text)
    study = load_study(Path("workflow/config/bai2022/study.yaml"))
    assert expand(study.but(cells=[cell]))[0].strategy == cell["strategy"]
