"""Files of points: what is read, refused, and predicted from a base."""

import csv
import random
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.cost.constants import Constants
from pipeline.cost.job import CONFIGURATION
from pipeline.cost.points import ADDED, predict_from_base, predict_row, read
from pipeline.cost.score import FOLDER

MEASURED = ("step_s", "samples_per_s", "tokens_per_s_gpu", "tflops_gpu_published", "mem_gib")


def rows(name: str = "torchtitan") -> list[dict[str, str]]:
    return read(FOLDER / f"{name}.csv")


def predicted(row, **changes) -> dict[str, str]:
    return predict_row({**row, **changes}, Constants())


@pytest.mark.parametrize("name", ["torchtitan", "internevo_a100"])
def test_no_measured_column_is_read(name) -> None:
    for row in rows(name):
        blank = dict.fromkeys((*MEASURED, "params", "mem_kind", "status", "suspect", "place"), "")
        scrambled = {column: str(random.random() * 100) for column in MEASURED}
        assert predicted(row) == predicted(row, **blank) == predicted(row, **scrambled)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "fp8"}, "FP8"),
        ({"cp": "2"}, "context parallelism"),
        ({"model": "moe-8x7b"}, "mixtures of experts"),
        ({"family": "Mixtral"}, "mixtures of experts"),
        ({"family": "t5"}, "encoders with a decoder"),
        ({"model": "ViT-22B"}, "encoders with a decoder"),
        ({"zero": "4"}, "zero is 4; expected 0 to 3"),
        ({"heads": "8192"}, "heads is 8192, more than hidden, 4096"),
        ({"hardware": "RTX A1000"}, "hardware 'RTX A1000' is not known"),
        ({"hardware": "A100X"}, "hardware 'A100X' is not known"),
        ({"hardware": "H1000"}, "hardware 'H1000' is not known"),
        ({"hardware": "GH200 480GB"}, "hardware 'GH200 480GB' is not known"),
        ({"precision": "int4"}, "precision 'int4'"),
        ({"hidden": ""}, "hidden is not stated"),
        ({"layers": "many"}, "layers is 'many', not a number"),
        ({"dp": "3"}, "does not fill 8 GPUs"),
        ({"dp": "1", "pp": "8", "layers": "4"}, "more stages than layers"),
        ({"micro": "0.5"}, "micro is 0.5, not a whole number"),
        ({"gpus": "1e12"}, "not a whole number up to"),
        ({"recompute": "half"}, "recompute is 'half'"),
        ({"micro": "", "accum": "", "global_batch": ""}, "neither the micro-batch"),
        ({"hardware": "V100", "precision": "bf16"}, "no data sheet rate in bfloat16"),
    ],
)
def test_what_cannot_be_predicted_has_a_reason_and_no_numbers(changes, reason) -> None:
    found = predicted(rows()[0], **changes)
    assert reason in found["reason"]
    assert not any(found[name] for name in ADDED if name not in ("reason", "fits"))
    assert found["fits"] == ("false" if "stages" in reason else "")


def test_parts_add_up_and_lie_in_the_band() -> None:
    for row in rows():
        found = predicted(row)
        parts = [v for k, v in found.items() if k.endswith("_s_pred") and k != "step_s_pred"]
        assert sum(map(float, parts)) == pytest.approx(float(found["step_s_pred"]), rel=1e-4)
        low, high = float(found["step_s_low"]), float(found["step_s_high"])
        assert low < float(found["step_s_pred"]) < high


def test_a_file_keeps_its_columns_and_gains_ours(tmp_path: Path, capsys) -> None:
    text = (FOLDER / "torchtitan.csv").read_text().splitlines()
    points = tmp_path / "unknown.csv"
    points.write_text("\n".join([text[0] + ",mine", *(line + ",x" for line in text[1:])]))
    out = tmp_path / "out.csv"
    assert main(["predict", "--points", str(points), "--out", str(out)]) == 0
    line = f"{out}: 8 rows, 0 of them not predicted (column reason)"
    printed = capsys.readouterr().out
    assert printed.startswith(f"{line}; columns that are not read: id, params, step_s, ")
    assert printed.endswith(", mine\n") and "zero" not in printed
    scaled = tmp_path / "scaled.csv"
    assert main(["predict", "--points", str(points), "--base", "--out", str(scaled)]) == 0
    printed = capsys.readouterr().out
    assert ", 2 from a base; columns" in printed and "step_s" not in printed
    with out.open() as file:
        found = list(csv.DictReader(file))
    assert list(found[0])[-len(ADDED) :] == list(ADDED)
    assert {row["mine"] for row in found} == {"x"}


def test_no_row_is_too_strange_to_be_answered() -> None:
    """Random cells of a points file: a prediction in its band, or a reason."""
    chance = random.Random(1)
    strange = ["", "0", "1", "3", "0.5", "-1", "nan", "inf", "True", "1e14", "x", "bf16", "100000"]
    known = [row for name in ("torchtitan", "dlperf_gpt_v100", "nvidia_bert") for row in rows(name)]
    for _ in range(2000):
        row = dict(chance.choice(known))
        for _ in range(chance.choice((1, 2, 4))):
            row[chance.choice(CONFIGURATION)] = chance.choice(strange)
        found = predicted(row)
        if not found["reason"]:
            low, middle, high = (float(found[f"step_s_{k}"]) for k in ("low", "pred", "high"))
            assert 0 < low <= middle <= high < 1e30, row


@pytest.fixture
def growing() -> list[dict[str, str]]:
    """Rows of one family, of which the first has the smallest world."""
    return rows("internevo_a100")[:8]


def test_the_base_alone_is_read(growing) -> None:
    before = predict_from_base(growing, Constants())
    for row in growing[1:]:
        row["step_s"] = "1e9"
    assert predict_from_base(growing, Constants()) == before
    growing[0]["step_s"] = str(2 * float(growing[0]["step_s"]))
    after = predict_from_base(growing, Constants())
    assert after[0] == before[0] == {**predict_row(growing[0], Constants()), "base": ""}
    assert all(
        float(a["step_s_pred"]) > float(b["step_s_pred"])
        for a, b in zip(after[1:], before[1:], strict=True)
    )


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("2.5 s", "step_s is '2.5 s', not a number"),
        ("inf", "step_s is inf, outside of 0 to 1e15"),
        ("4033", "its step_s is 4033, predicted are "),
        ("0.01", "its step_s is 0.01, predicted are "),
    ],
)
def test_a_base_that_cannot_be_is_left_out_with_a_word(growing, step, why) -> None:
    growing[0]["step_s"] = step
    texts: list[str] = []
    next_one = predict_from_base(growing, Constants(), texts.append)
    assert [row["base"] for row in next_one] == ["", "", *["16"] * 6]
    for row in growing[1:]:
        row["step_s"] = ""
    texts.clear()
    found = predict_from_base(growing, Constants(), texts.append)
    assert found == [{**predict_row(row, Constants()), "base": ""} for row in growing]
    [text] = texts
    assert text.startswith("row 1 of 8 GPUs is no base of 7 larger worlds") and why in text


def test_the_base_is_the_smallest_world_with_a_step_whatever_its_note(growing) -> None:
    growing[0] |= {"step_s": "", "status": "failed"}
    growing[2]["note"] += "; read from a figure"
    found = predict_from_base(growing, Constants())
    assert [row["base"] for row in found] == ["", "", *["16"] * 6]
    assert not any(row["reason"] for row in found)
    unmeasured = [{**row, "step_s": ""} for row in growing]
    assert not any(row["base"] for row in predict_from_base(unmeasured, Constants()))


def test_a_base_without_a_layout_is_the_fastest_that_fits() -> None:
    """Of 175 B on 80 GiB: what is answered for the larger world is what it is without a base."""
    sizes = {"layers": "96", "hidden": "12288", "heads": "96", "vocab": "51200", "seq": "2048"}
    row = {"hardware": "A100-80GB", "device_gib": "80", "gpus": "64", "node_net_gbps": "1600",
           "global_batch": "1536", "precision": "bf16", "recompute": "full", "step_s": "150",
           **sizes}  # fmt: skip
    pair = [row, {**row, "gpus": "128"}]
    small, large = predict_from_base(pair, Constants())
    layout = ("dp_pred", "tp_pred", "pp_pred", "micro_pred", "mem_gib_pred", "fits")
    alone = predict_row(pair[1], Constants())
    assert [large[name] for name in layout] == [alone[name] for name in layout]
    assert large["fits"] == "true" and large["base"] == "64"
    assert int(large["tp_pred"]) * int(large["pp_pred"]) > 1
    assert 0.4 < float(large["step_s_pred"]) / 150 < 0.6
    assert float(small["step_s_pred"]) > 100
