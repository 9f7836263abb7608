"""Lines of real logs (tests/examples/logs) as points, and what is refused."""

import csv
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.cost.logs import read
from pipeline.errors import PredictionError

LOGS = Path("tests/examples/logs")
SIZES = {"gpus": "4", "global_batch": "20", "seq": "8192"}
CORRUPT = (
    "[rank0]:2025-02-13 11:33:45,521 - root - INFO - step: 10  loss:  9.8821  mmemory: "
    "49.59GiB(35.46%)  tps: 7,026  mfu: 41.15%"
)
"""As a terminal of February 2025 has it."""


@pytest.mark.parametrize(
    ("name", "seconds", "loss", "gib"),
    [
        ("megatron-2021", 18.5569, 10.2386, None),
        ("megatron-2024", 5.4106, 2.00332, 61480 / 1024),
        ("megatron-2025", 0.8498, 8.63835, 1576 / 1024),  # two lines skipped updates
        ("torchtitan-2024", 20 * 8192 / 4 / 111742, 11.9455, 81.67),
        ("torchtitan-2025-02", 8 * 8192 / 8 / 7080, 7.3925, 49.59),
        ("torchtitan-2025-07", 20 * 8192 / 4 / 35051, 4.6671, None),
    ],
)
def test_each_version_has_step_time_loss_and_memory(name, seconds, loss, gib) -> None:
    given = {} if name == "torchtitan-2025-02" else SIZES
    row = read(LOGS / f"{name}.txt", given)
    assert float(row["step_s"]) == pytest.approx(seconds, rel=1e-5)
    assert float(row["loss"]) == pytest.approx(loss, rel=1e-5)
    assert row["mem_gib"] == (f"{gib:.6g}" if gib else "")
    assert row["origin"] == "measured elsewhere"


def test_the_configuration_that_a_log_prints_is_predicted(tmp_path, capsys) -> None:
    """Beside the measured step; what it does not print is named, and given."""
    points, out = tmp_path / "points.csv", tmp_path / "out.csv"
    for name, lacks, given in (
        ("megatron-2025", "hardware, gpus_per_node, node_net_gbps",
         "hardware=V100-32GB,device_gib=32,gpus_per_node=1"),
        ("torchtitan-2025-02", "gpus_per_node, node_net_gbps, ffn, gated, tied, precision",
         "gpus_per_node=8,ffn=14336,gated=1,tied=0,precision=bf16,flash=1"),
    ):  # fmt: skip
        words = ["logs", str(LOGS / f"{name}.txt"), "--out", str(points)]
        assert main(words) == 0
        assert f"it does not print {lacks}: give" in capsys.readouterr().out
        assert main([*words, "--set", given]) == 0
        assert main(["predict", "--points", str(points), "--out", str(out)]) == 0
        [row] = csv.DictReader(out.open())
        assert row["reason"] == "" and row["fits"] == "true"
        assert 0.2 < float(row["step_s_pred"]) / float(row["step_s"]) < 5
        assert (row["layers"], row["heads"]) in (("12", "12"), ("32", "32"))
        capsys.readouterr()


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda titan, megatron: [*titan[:10], CORRUPT, *titan[10:]], r":11 is cut off or of anot"),
        (lambda titan, megatron: [*titan, megatron[-1]], r":16 is .* line of torchtitan on a step"),
        (lambda titan, megatron: [*titan, titan[12]], r":16 is step 30 behind step 40; give the"),
        (
            lambda titan, megatron: ["Epoch 51, Loss: 4.6444"],
            r"has too few lines of .* on a step \(0\)",
        ),
        (lambda titan, megatron: [*titan[:2], *titan[3:]], r"and '8, 8192, ' as global_batch, seq"),
        (lambda titan, megatron: megatron[:-6], r"skipped updates in all lines; give a longer"),
        (lambda titan, megatron: [*megatron[:-1], megatron[-1][:-20]], r"line of Megatron-LM on a"),
    ],
)
def test_cut_off_and_foreign_lines_are_refused_by_their_number(edit, said, tmp_path) -> None:
    both = [(LOGS / f"{n}.txt").read_text().splitlines() for n in ("torchtitan-2025-02",
                                                                   "megatron-2025")]  # fmt: skip
    path = tmp_path / "a.log"
    path.write_text("\n".join(edit(*both)))
    with pytest.raises(PredictionError, match=said):
        read(path, {})


def test_colours_and_ranks_before_a_line_are_no_part_of_it(tmp_path) -> None:
    text = (LOGS / "torchtitan-2025-02.txt").read_text()
    path = tmp_path / "a.log"
    path.write_text(text.replace("step:", "\x1b[31mstep:").replace("loss:", "\x1b[1;32mloss:"))
    known = read(LOGS / "torchtitan-2025-02.txt", {})
    assert read(path, {}) == {**known, "place": "a.log"}


def test_a_column_that_is_none_is_refused(tmp_path, capsys) -> None:
    words = ["logs", str(LOGS / "megatron-2021.txt"), "--out", str(tmp_path / "x.csv"), "--set"]
    for given in ("gpu=8", "gpus", "gpus="):
        assert main([*words, given]) == 2
        assert f"--set '{given.partition('=')[0]}' gives no column a" in capsys.readouterr().err
    for given, reason in (("gpus=eight", "not a number"), ("tp=1.5", "not a whole number")):
        assert main([*words, given]) == 2
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()
