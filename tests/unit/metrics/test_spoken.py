"""Labels as a sentence has them: library and type are left out only where the label names them."""

import pandas as pd
import pytest

from pipeline.metrics.labels import spoken


def table(*cells: tuple[str, str, str]) -> pd.DataFrame:
    rows = [
        {"cell": f"c{place}", "label": label, "cell_order": place, "strategy": "ddp", "link": None,
         "precision": "x", "precision_ran": ran, "arm": f"c{place}", "arm_label": arm}
        for place, (label, arm, ran) in enumerate(cells)
    ]  # fmt: skip
    return pd.DataFrame([*rows, {"cell": None}])


@pytest.mark.parametrize(
    ("label", "ran", "said"),
    [
        ("DPS + AMP O2", "torch amp O2, bf16", "DPS + AMP O2"),
        ("Horovod + Apex", "apex O1, fp16", "Horovod + Apex"),
        ("Horovod + Apex", "torch amp O1, bf16", "Horovod + Apex [torch amp O1, bf16]"),
        ("Mixed DPS", "torch amp O2, bf16", "Mixed DPS [torch amp O2, bf16]"),
        ("AMP, not Apex", "torch amp O2, bf16", "AMP, not Apex [torch amp O2, bf16]"),
    ],
)
def test_what_ran_is_said_where_the_label_does_not(label: str, ran: str, said: str) -> None:
    arm = f"{label} [{ran}]"
    found = spoken(table((f"{arm}, 1 Gbit/s", arm, ran), ("DDP", "DDP", "torch fp32")))
    assert list(found["label"].dropna()) == [f"{said}, 1 Gbit/s", "DDP"]
    assert list(found["arm_label"].dropna()) == [said, "DDP"]


def test_two_cells_never_share_a_name() -> None:
    one, other = "AMP [torch amp O1, bf16]", "AMP [torch amp O2, bf16]"
    cells = table((one, one, "torch amp O1, bf16"), (other, other, "torch amp O2, bf16"))
    assert list(spoken(cells)["label"].dropna()) == [one, other]
    plain = table((one, one, "torch amp O1, bf16"), ("AMP", "AMP", "torch fp32"))
    assert list(spoken(plain)["label"].dropna()) == [one, "AMP"]
