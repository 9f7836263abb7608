"""The cable of an emulated node and its conditions (standard library only)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LinkSpec:
    """The cable of an emulated node, full duplex: Mbit/s each way, one-way delay in microseconds.

    `name` is part of the names of the cells that run over it. The fields after the delay are
    conditions, None where they do not hold; they need several nodes:

    - `receive_mbits`: rate towards the node, where it differs from the rate that it sends at.
    - `uplink_mbits`: rate of the one cable between two switches, with half of the nodes at each.
    - `straggler`: speed of the last node relative to the others, between 0 and 1.
    - `jitter`: each step's computation on each node takes longer by a share of it, drawn uniformly
      from 0 to `jitter` by the run's seed.
    """

    name: str
    rate_mbits: float
    delay_us: int = 0
    receive_mbits: float | None = None
    uplink_mbits: float | None = None
    straggler: float | None = None
    jitter: float | None = None

    @property
    def text(self) -> str:
        """`1 Gbit/s`, with the delay and the conditions where there are some."""
        parts = {
            "{}": _rate_text(self.rate_mbits),
            "{} µs": self.delay_us or None,
            "receives {}": _rate_text(self.receive_mbits),
            "uplink {}": _rate_text(self.uplink_mbits),
            "one node at {:g} speed": self.straggler,
            "jitter {:g}": self.jitter,
        }
        return ", ".join(text.format(value) for text, value in parts.items() if value is not None)

    def seconds(self, sent: float) -> float:
        """Seconds that so many bytes take on the cable, at the rate at which a node sends."""
        return 8 * sent / (1e6 * self.rate_mbits)

    @property
    def conditions(self) -> dict[str, float]:
        """The conditions of this link that are set, by the names of their fields."""
        return {k: v for k, v in self.to_dict().items() if k not in self.plain.to_dict()}

    @property
    def plain(self) -> LinkSpec:
        """The same cable without conditions, as one node alone has it."""
        return LinkSpec(self.name, self.rate_mbits, self.delay_us)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; conditions that do not hold are left out."""
        return {k: v for k, v in vars(self).items() if v is not None}


def _rate_text(mbits: float | None) -> str | None:
    if mbits is None:
        return None
    return f"{mbits / 1000:g} Gbit/s" if mbits >= 1000 else f"{mbits:g} Mbit/s"
