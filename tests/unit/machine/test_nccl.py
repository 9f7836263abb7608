"""NCCL's account, read from lines as NCCL 2.2x writes them."""

from pathlib import Path
from typing import Any

from pipeline.machine import nccl

HEAD = "node1:71:90 [0] NCCL INFO "
INFINIBAND = [
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.7<0>",
    "Using network IB",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IB/0/GDRDMA",
    "16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels",
]
SOCKETS = [
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.0.0.7<0> [1]eth1:10.1.0.7<0>",
    "Using network Socket",
    "Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    "2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels",
]


def read(folder: Path, lines: list[str]) -> dict[str, Any]:
    log = folder / "nccl.log"
    log.write_text("".join(f"{HEAD}{line}\n" for line in lines))
    account = nccl.account(log)
    assert account is not None
    return account


def test_infiniband_is_told_with_its_cards_and_channels(tmp_path: Path) -> None:
    assert read(tmp_path, INFINIBAND) == {
        "network": "IB",
        "cards": ["mlx5_0/IB", "mlx5_1/RoCE"],
        "channels": 16,
        "transports": ["NET/IB", "P2P/CUMEM"],
        "tcp": False,
    }


def test_a_fall_back_to_tcp_is_told_without_addresses(tmp_path: Path) -> None:
    account = read(tmp_path, SOCKETS)
    assert account["tcp"] and account["cards"] == ["eth0", "eth1"] and account["channels"] == 2
    assert "10." not in str(account)


def test_sockets_that_one_machine_opens_and_does_not_use_are_no_fall_back(tmp_path: Path) -> None:
    account = read(tmp_path, [*SOCKETS[:3], "Channel 00 : 1[1] -> 0[0] via SHM/direct/direct"])
    assert not account["tcp"] and account["transports"] == ["SHM/direct"]


def test_every_rank_has_a_log_of_its_own_and_an_old_one_is_not_read(tmp_path: Path) -> None:
    log, environment = tmp_path / "rank3.nccl.log", {"NCCL_DEBUG": "WARN"}
    log.write_text("of an earlier launch")
    nccl.listen(environment, log)
    assert environment["NCCL_DEBUG"] == "INFO" and environment["NCCL_DEBUG_FILE"] == str(log)
    assert environment["NCCL_CONF_FILE"] == "/dev/null", "a person's own settings are no study's"
    environment["NCCL_CONF_FILE"] = "stated"
    nccl.listen(environment, log)
    assert environment["NCCL_CONF_FILE"] == "stated"
    assert nccl.account(log) is None
