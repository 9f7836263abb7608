"""The cells of a study on more nodes than are here."""

from __future__ import annotations

import csv
from pathlib import Path

from pipeline.__main__ import main
from pipeline.cost.constants import Constants
from pipeline.cost.points import predict_row
from pipeline.planner.projection import project
from pipeline.planner.ranking import Cluster
from pipeline.study.load import find_study, load_study

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


def test_layouts_keep_their_axes_and_the_data_axis_grows() -> None:
    study = load_study(find_study("alpa2022"))
    found = rows(study, counts=(4, 16, 64), weak=True)
    assert not found["zero1", 64]["reason"] and not found["ddp", 64]["reason"]
    assert float(found["zero1", 64]["mem_gib_pred"]) < float(found["ddp", 64]["mem_gib_pred"])
    assert all(row["reason"] or float(row["step_s_pred"]) > 0 for row in found.values())


def test_the_command_writes_the_table_and_says_that_it_is_projected(tmp_path, capsys) -> None:
    words = "predict --study bai2022 --device v100-16 --link 25gbit --nodes 1,1024 --weak --out"
    assert main([*words.split(), str(tmp_path / "p.csv")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("Projected by the cost model, nothing is measured")
    with (tmp_path / "p.csv").open() as file:
        found = {(row["cell"], row["nodes"]): row for row in csv.DictReader(file)}
    assert found["horovod", "1024"]["gpus"] == "4096"
