"""NCCL's own account of the network that it uses, read from its log.

NCCL chooses a transport for each pair of ranks by itself; no variable and no name of a host tells
which. It says so in its log (`INIT` and `NET`), which every rank gets in a file of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

_NETWORK = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
_CARDS = re.compile(r"NCCL INFO NET/(\S+) ?: Using (.+)$", re.MULTILINE)
_CARD = re.compile(r"\[\d+\]([\w.-]+)(?::\d+/(\w+))?")
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
_PATH = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : .* via ([A-Z0-9]+/[A-Za-z]\w*|[A-Z0-9]+)")
TCP = "NET/Socket"


def listen(environment: MutableMapping[str, str], log: Path) -> None:
    """Make NCCL write its account to `log`; before its first group, for it reads these once.

    It reads no `.nccl.conf` of a person's home, unless the study or the site names one.
    """
    log.unlink(missing_ok=True)
    environment.setdefault("NCCL_CONF_FILE", os.devnull)
    environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(log))


def account(log: Path) -> dict[str, Any] | None:
    """Facts of the log, as the schema of a record has them; None where there is no log.

    A network that NCCL opened and does not use, as on one machine, is in no transport. `tcp` is
    None where no channel was found, so that it says nothing of one. Addresses are left out.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    networks = _NETWORK.findall(text)
    network = networks[-1] if networks else None
    cards = [card for name, line in _CARDS.findall(text) if name == network
             for card in _CARD.findall(line.partition(";")[0])]  # fmt: skip
    channels = [int(number) for number in _CHANNELS.findall(text)]
    transports = sorted(set(_PATH.findall(text)))
    return {
        "network": network,
        "cards": sorted({"/".join(filter(None, card)) for card in cards}),
        "channels": max(channels) if channels else None,
        "transports": transports,
        "tcp": TCP in transports if transports else None,
    }
