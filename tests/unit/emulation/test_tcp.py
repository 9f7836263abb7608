"""TCP's settings and tables of a node; its timers and counters are in tests/system."""

from pathlib import Path

import pytest

from pipeline.emulation import pacing, tcp


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that stands for the kernel's settings and tables of a node."""
    settings = tmp_path / "sys"
    monkeypatch.setattr(tcp, "_SETTINGS", settings)
    monkeypatch.setattr(tcp, "_COUNTERS", tmp_path)
    return tmp_path


def test_settings_that_are_closed_stay_as_they_are(kernel: Path) -> None:
    """As in a container whose /proc/sys may only be read."""
    for name in tcp.SETTINGS:
        (kernel / "sys" / name).mkdir(parents=True)  # nobody can write a folder, not even root
    tcp.configure()


def test_a_node_knows_what_its_cable_carried(kernel: Path, monkeypatch) -> None:
    lines = ["Inter-| Receive | Transmit", " face |bytes packets ... |bytes packets ..."]
    lines += [f"    lo: {' '.join('1' * 16)}", "  eth0: 90 1 0 0 0 0 0 0 176 2 0 0 0 0 0 0"]
    (kernel / "dev").write_text("\n".join(lines) + "\n")
    monkeypatch.delenv(pacing.VARIABLE, raising=False)
    assert tcp.sent_bytes() is None
    monkeypatch.setenv(pacing.VARIABLE, "1")
    assert tcp.sent_bytes() == 176
