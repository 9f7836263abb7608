"""What `plan` predicts and refuses, and the cells of a study on more nodes than are here."""

import csv
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.__main__ import main
from pipeline.cost.constants import Constants
from pipeline.cost.points import predict_row
from pipeline.models import num_parameters
from pipeline.options import memory, rate
from pipeline.planner.memory import (
    GIBIBYTE,
    MEBIBYTE,
    PRODUCT_BUFFERS,
    CellPlan,
    plan_study,
)
from pipeline.planner.projection import project, shown
from pipeline.planner.ranking import Cluster
from pipeline.resolved import resolve, runs_of
from pipeline.study.expansion import every_run, expand, profiled
from pipeline.study.load import find_study, load_study


@cache
def plans_of(name: str) -> dict[tuple[str, int], CellPlan]:
    runs = runs_of(load_study(find_study(name)))
    return {(p.spec.cell, p.spec.world.nodes): p for p in plan_study(runs)}


def test_ranks_of_one_machine_share_its_memory_and_gpus_do_not() -> None:
    cpu, cuda = plans_of("smoke")["dps", 4], plans_of("bai2022")["dps", 2]
    assert cpu.needed_bytes == 4 * cpu.memory.peak
    assert cuda.needed_bytes == cuda.memory.peak
    assert (cpu.gpus, cuda.gpus) == (0, 8)


def test_the_verdict_turns_at_its_margins() -> None:
    for plan in (plans_of("bai2022")["single", 1], plans_of("smoke")["single", 1]):
        need = plan.needed_bytes
        words = [plan.verdict(round(need * factor)) for factor in (0.5, 0.95, 1.05, 2)]
        assert words == ["does not fit", "tight", "tight", "fits"]


def test_gpu_hours_are_those_of_all_gpus_up_to_the_time_limit() -> None:
    plan = plans_of("bai2022")["horovod", 2]
    assert plan.hours == 6 * 21600 / 3600
    assert plan.hours * plan.gpus == 288


def test_the_table_says_what_fits(capsys) -> None:
    assert main(["plan", "--study", "bai2022", "--device", "v100-16"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" fits ") == 10 and "10 of 10 fit 16 GiB" in shown
    assert "formula 24" in shown and "is that of Bai 2022, appendix C.4" in shown
    assert main(["plan", "--study", "gspmd2021"]) == 0
    assert "ormula 24" not in capsys.readouterr().out
    words = "plan --study workflow/config/bai2022/study.yaml --device-memory 4GiB"
    assert main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "does not fit" in shown and "tight" in shown


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("plan --study smoke --device v100-16", "is a GPU"),
        ("plan --study smoke --device-memory 16", "'16'"),
        ("plan --study smoke --device-memory 0GiB", "'0GiB'"),
        ("plan --study smoke --auto", "--auto needs --calibration FILE"),
        ("plan --study bai2022 --auto", "--auto needs --device and of several nodes --link"),
        ("plan --model 1.3B", "--model needs --device"),
        ("plan --model 1.3B --nodes 2 --device a100-80", "--model needs --link"),
        ("plan --model 1.3B --device v100-16", "no data sheet rate in bfloat16"),
        ("predict --study bai2022 --device v100-16", "--device needs --link for several nodes"),
        ("predict --study bai2022 --device v100-16 --nodes 2,1025",
         "'1025' is no whole number from 1"),
    ],
)  # fmt: skip
def test_what_is_missing_or_no_value_is_one_line(words, error, capsys) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr().err
    assert error in shown and shown.startswith("error: ") and shown.count("\n") == 1


def test_quantities() -> None:
    assert memory("16GiB") == 16 * GIBIBYTE == memory("16384 mib")
    assert (memory("1.5GiB"), memory("16GB")) == (1536 * MEBIBYTE, 16 * 10**9)
    assert (rate("200gbit"), rate("500 Mbit/s")) == (200.0, 0.5)


def test_runs_that_are_profiled_or_in_real_time_are_planned_too(capsys) -> None:
    study = load_study(Path("workflow/config/smoke/study.yaml"))
    assert main(["plan", "--study", "smoke"]) == 0
    count, shown = len(every_run(study)), capsys.readouterr().out
    assert count > len(expand(study)) + len(profiled(study))
    assert f"(all runs reach their time limit): {count} runs, 11.5 hours" in shown
    assert "fits" not in shown.replace("Whether it fits", ""), "no device is given"


def test_repeats_that_cannot_decide_are_warned_of(capsys, tmp_path) -> None:
    study = load_study(Path("workflow/config/bai2022/study.yaml"))
    for repeats, warned in ((5, True), (6, False)):
        path = tmp_path / "study.json"
        path.write_text(json.dumps(study.but(repeats=repeats, profile={"steps": 20}).to_dict()))
        assert main(["plan", "--study", str(path)]) == 0
        shown = capsys.readouterr().out
        assert ("warning: 5 repeats cannot decide" in shown) == warned
        assert ("15 comparisons (pairs of 6 cells at 1 node) and needs 6" in shown) == warned


def test_zero_1_needs_more_than_ddp_where_a_heap_keeps_its_messages() -> None:
    """Measured on four nodes at 1.6 M parameters: 342 MiB, and 320 of DDP."""
    found = plans_of("alpa2022")
    specs = [found[cell, 4].spec for cell in ("zero1", "ddp")]
    once = replace(specs[0].workload, accumulation_steps=1)
    small = [replace(s, model=replace(s.model, width=128), workload=once) for s in specs]
    zero, ddp = (plan_study([resolve(spec)])[0].memory.peak / MEBIBYTE for spec in small)
    assert 8 < zero - ddp < 22
    gpus = plans_of("bai2022")["dps", 2].spec
    sharded = replace(gpus, strategy="sharded", options={"stage": 1})
    on_gpus = [plan_study([resolve(spec)])[0].memory.peak for spec in (gpus, sharded)]
    assert on_gpus[1] < on_gpus[0]


def test_three_axes_and_zero_1_need_what_was_measured() -> None:
    """The largest ranks of the study's three runs on 8 nodes had 391, 395 and 399 MiB.

    Each of its three batches leaves MKL's buffers for products of its size.
    """
    runs = expand(load_study(find_study("mtnlg2022-batch-ramp")))
    ramp = next(run for run in runs if run.cell == "three")
    found = plan_study([resolve(ramp)])[0].memory
    assert found.peak / MEBIBYTE == pytest.approx(395, rel=0.1)
    alone = replace(ramp, workload=replace(ramp.workload, phases=()))
    assert found.base - plan_study([resolve(alone)])[0].memory.base == 2 * PRODUCT_BUFFERS
    # Rows of weights and gradients, a bucket and the other rank's part of its own, what is
    # gathered and Gloo's copy: as with `sharded`.
    layout, gradients = resolve(ramp).layout, 4 * num_parameters(ramp.model)
    kept = strategies.load("hybrid", ramp.options).footprint(ramp, layout, 0, gradients)
    own = kept.weight_share * gradients
    assert kept.gathered_bytes == pytest.approx((1 + 1.5 + 2) * own) and kept.holds_gradients
    assert (kept.buffer_bytes, kept.optimiser_share) == (0, kept.weight_share / 2)


BAI = load_study(Path("workflow/config/bai2022/study.yaml"))
V100 = Cluster("v100-16", 16, 1, 1, 25.0)


def rows(
    study=BAI, counts=(1, 2, 8), weak=True, **changes
) -> dict[tuple[str, int], dict[str, str]]:
    found = project(study.but(**changes) if changes else study, V100, counts, weak=weak)
    return {(row["cell"], int(row["nodes"])): row for row in found}


def test_a_step_is_that_of_predict_points_for_the_same_configuration() -> None:
    own = {
        "hardware": "v100-16", "device_gib": "16", "gpus": "32", "gpus_per_node": "4",
        "node_net_gbps": "25", "layers": "12", "hidden": "768", "heads": "12", "vocab": "26651",
        "seq": "512", "tied": "1", "dp": "32", "tp": "1", "pp": "1", "micro": "4",
        "global_batch": "128", "precision": "fp32", "flash": "1", "optimiser": "adamw",
        "framework": "samestep",
    }  # fmt: skip
    assert rows()["dps", 8]["step_s_pred"] == predict_row(own, Constants())["step_s_pred"]


def test_each_strategy_is_projected_or_says_why_not() -> None:
    found = rows(counts=[2**power for power in range(11)])
    assert {row["provenance"] for row in found.values()} == {"projected"}
    for cell in ("dps", "horovod", "dps-apex", "horovod-apex"):
        line = [row for (name, _), row in found.items() if name == cell]
        assert len(line) == 11
        for row in line:
            low, step, high = (float(row[f"step_s_{end}"]) for end in ("low", "pred", "high"))
            assert low < step < high and row["fits"] == "true"
        rates = [float(row["efficiency_pred"]) for row in line]
        assert rates == sorted(rates, reverse=True) and rates[0] == 1
        assert int(line[-1]["global_batch"]) == 4 * 4096
    assert ("single", 1) in found and ("single", 2) not in found
    later = [row for row in found.values() if row["nodes"] in ("4", "16")]
    assert " efficiency against 1 node " in shown([*found.values()], "v100-16")[0]
    assert " efficiency against 4 nodes " in shown(later, "v100-16")[0]
    assert "no published step was made as strategy parameter_server" in found["sps", 1]["reason"]


def test_extra_work_that_the_model_does_not_know_is_not_projected() -> None:
    study = load_study(find_study("bai2022-as-published"))
    found = rows(study, counts=(2,))
    for cell in ("dps", "horovod", "horovod-apex"):
        assert "no published step was made as strategy" in found[cell, 2]["reason"]
    assert not found["dps-apex", 2]["reason"]


def test_recomputed_attention_costs_its_forward_pass_and_saves_its_statistics() -> None:
    found = []
    for what in ("none", "attention", "full"):
        row = rows(workload={**BAI.content["workload"], "recompute": what})["dps", 2]
        found.append((float(row["step_s_pred"]), float(row["mem_gib_pred"])))
    seconds, memory = zip(*found, strict=True)
    assert seconds[0] < seconds[1] < seconds[2]
    assert memory[0] > memory[1] > memory[2]


def test_a_batch_that_stays_ends_where_it_cannot_be_cut() -> None:
    found = rows(weak=False, counts=(4, 8))
    assert found["dps", 4]["global_batch"] == "16" and not found["dps", 4]["reason"]
    assert "set workload.global_batch to a multiple of 32" in found["dps", 8]["reason"]


def test_the_command_writes_the_table_and_says_that_it_is_projected(tmp_path, capsys) -> None:
    words = "predict --study bai2022 --device v100-16 --link 25gbit --nodes 1,1024 --weak --out"
    assert main([*words.split(), str(tmp_path / "p.csv")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("Projected by the cost model, nothing is measured")
    with (tmp_path / "p.csv").open() as file:
        found = {(row["cell"], row["nodes"]): row for row in csv.DictReader(file)}
    assert found["horovod", "1024"]["gpus"] == "4096"
