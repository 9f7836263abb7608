"""Facts of machine and rank; None where the machine has none."""

from types import SimpleNamespace

import pynvml
import pytest

from pipeline.machine import facts as machine


def test_a_gpu_that_may_not_be_asked_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is made after its run has trained; NVML refuses devices of other containers."""

    def handle(index: int) -> int:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return index

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _: "NVIDIA A100-SXM4-80GB")
    assert machine.hardware()["gpus"] == ["NVIDIA A100-SXM4-80GB", "unknown"]


def test_a_gpu_whose_driver_tells_nothing_ends_no_run(monkeypatch) -> None:
    """MIG and vGPU refuse some of NVML's questions; a run has trained by then."""

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "A100 MIG 1g.5gb")
    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.setattr("torch.cuda.nccl.version", refuse)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    facts = machine.rank_environment(SimpleNamespace(type="cuda"), alone=False)
    assert [facts[key] for key in ("gpu", "driver", "nccl")] == ["A100 MIG 1g.5gb", None, None]
    assert facts["interface"] is facts["interface_mbits"] is None, "NCCL chooses by itself"


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
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "flags")
    monkeypatch.setattr(machine, "FIRMWARE", tmp_path / "vendor")
    monkeypatch.setattr(machine, "HYPERVISOR", tmp_path / "none")
    assert machine.virtualisation() == expected
