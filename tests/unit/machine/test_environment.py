"""What a rank tells of its machine: facts that are there, None for what is not told."""

import json
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from pipeline.machine import environment
from pipeline.machine.environment import interface_mbits, interface_to_others, rank_environment
from pipeline.schemas import SCHEMA_FOLDER

CPU = SimpleNamespace(type="cpu")


def test_it_is_what_the_schema_of_a_record_asks_for() -> None:
    schema = json.loads((SCHEMA_FOLDER / "record.schema.json").read_text())
    asked = schema["properties"]["ranks"]["items"]["properties"]["environment"]
    found = rank_environment(CPU, alone=True)
    assert set(found) == set(asked["required"]) == set(asked["properties"])
    assert found["num_cores"] >= 1 and found["kernel"].partition(" ")[2]
    assert found["gpu"] is found["driver"] is found["nccl"] is found["interface"] is None


def test_a_gpu_whose_driver_tells_nothing_ends_no_run(monkeypatch) -> None:
    """MIG and vGPU refuse some of NVML's questions; a run has trained by then."""

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "A100 MIG 1g.5gb")
    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.setattr("torch.cuda.nccl.version", refuse)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = rank_environment(SimpleNamespace(type="cuda"), alone=False)
    assert [found[key] for key in ("gpu", "driver", "nccl")] == ["A100 MIG 1g.5gb", None, None]
    assert found["interface"] is found["interface_mbits"] is None, "NCCL chooses by itself"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"GLOO_SOCKET_IFNAME": "eth0,eth1"}, "eth0"),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, None),
    ],
)
def test_the_interface_is_the_one_that_was_named(monkeypatch, variables, expected) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert interface_to_others() == expected


@pytest.mark.parametrize(("speed", "expected"), [(10_000, 10_000), (0, None), (65535, None)])
def test_a_rate_that_the_driver_does_not_state_is_none(monkeypatch, speed, expected) -> None:
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"eth0": SimpleNamespace(speed=speed)})
    assert interface_mbits("eth0") == expected and interface_mbits("eth1") is None


@pytest.mark.parametrize(
    ("flags", "vendor", "expected"),
    [
        ("flags : fpu hypervisor lahf", "QEMU\n", "QEMU"),
        ("flags : fpu hypervisor lahf", None, "a hypervisor"),
        ("flags : fpu lahf", "Dell Inc.", None),
    ],
)
def test_a_machine_is_virtual_where_its_processor_says_so(
    tmp_path, monkeypatch, flags, vendor, expected
) -> None:
    (tmp_path / "flags").write_text(flags)
    if vendor is not None:
        (tmp_path / "vendor").write_text(vendor)
    monkeypatch.setattr(environment, "CPU_FLAGS", tmp_path / "flags")
    monkeypatch.setattr(environment, "FIRMWARE", tmp_path / "vendor")
    monkeypatch.setattr(environment, "HYPERVISOR", tmp_path / "none")
    assert environment.virtualisation() == expected
