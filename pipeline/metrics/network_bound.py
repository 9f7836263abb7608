"""The throughput that the links between nodes allow at most: rows of level `cell`.

Data-parallel nodes all need the sum of the gradients of all. Whatever the algorithm, N nodes send
2 (N - 1) gradients in all, N - 1 to combine the parts and N - 1 to spread the sum, so one of them
sends at least 2 (N - 1) / N (Patarasuk & Yuan 2009). A step takes no less than that over the rate
of a link, however well it is hidden behind computation. Layouts that cut the model, and links of
unknown rate, have no such bound.
"""

from __future__ import annotations

from pipeline.cost.traffic import ring
from pipeline.metrics.cells import CellRuns, Groups
from pipeline.metrics.parity import lossy
from pipeline.metrics.table import Rows, interval_row, row
from pipeline.models import HALF
from pipeline.precision.widths import widths


def network_bound_rows(groups: Groups) -> list[Rows]:
    """The bound of every finished cell that has one, and the share of it that was reached."""
    parts = []
    for group in groups.values():
        if (seconds := least_step_seconds(group)) is None:
            continue
        bound = group.context["global_batch_tokens"] / seconds
        about = "at most, by the rate of a node's link"
        parts.append(Rows(group.context, [
            row("network_bound_tokens_per_second", "tokens/s", bound, text=about),
            interval_row("share_of_network_bound", "1", group.rate.times(1 / bound)),
        ]))  # fmt: skip
    return parts


def least_step_seconds(group: CellRuns) -> float | None:
    """Seconds that the gradients of a step need on the link of a node; None where not known."""
    nodes, rates = int(group.context["nodes"]), list[float]()
    if nodes < 2 or not group.ok:
        return None
    for run in group.ok:
        record, world = run.record.run, run.record.spec.world
        if dict(record["execution"]["layout"].get("axes", ())).keys() - {"data"}:
            return None
        speeds = [rank.get("environment", {}).get("interface_mbits") for rank in record["ranks"]]
        network = record["execution"]["network"]
        if network == "emulated" and world.link is not None:
            rates.append(world.link.rate_mbits)
        # NCCL may take another network than the interface of older records.
        elif network == "real" and world.backend != "nccl" and None not in speeds:
            rates.append(max(speeds))
        else:
            return None
    first = group.ok[0].record
    # Narrow weights have gradients that may travel so, whether or not the strategy does it.
    each = HALF if lossy(group) else widths(first.spec.precision).reduced
    sent = ring(2 * first.run["model"]["num_parameters"] * each, nodes)
    return 8 * sent / (1e6 * max(rates))
