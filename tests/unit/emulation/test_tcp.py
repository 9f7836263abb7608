"""TCP's settings of a node; its timers, counters and tables are in tests/system."""

from pathlib import Path

from pipeline.emulation import tcp


def test_settings_that_are_closed_stay_as_they_are(monkeypatch, tmp_path: Path) -> None:
    """As in a container whose /proc/sys may only be read."""
    monkeypatch.setattr(tcp, "_SETTINGS", tmp_path)
    for name in tcp.SETTINGS:
        (tmp_path / name).mkdir(parents=True)  # nobody can write a folder, not even root
    tcp.configure()
