import importlib.util

import pytest

from envs.image import lock

H1, H2 = "1" * 64, "2" * 64
JINJA = f"jinja2==3.1.6 --hash=sha256:{H1} --hash=sha256:{H2}"
LOCK = f"""\
#
#    make lock
#
jinja2==3.1.6 \\
    --hash=sha256:{H1} \\
    --hash=sha256:{H2}
    # via
    #   -r envs/requirements.in
    #   torch
markupsafe==3.0.4
    # via jinja2
mpmath==1.3.0
    # via sympy
numpy==2.4.6
    # via -r envs/requirements.in
setuptools==84.2.1
    # via
    #   pip-tools
    #   torch
sympy==1.14.0
    # via torch
torch==2.13.0
    # via -r envs/requirements.in
"""


@pytest.mark.parametrize("has_torch", [True, False])
def test_the_command_prints_what_is_to_be_installed(
    tmp_path, monkeypatch, capsys, has_torch
) -> None:
    path = tmp_path / "lock"
    path.write_text(LOCK)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if has_torch else None)
    assert lock.main([str(path)]) == 0
    shown = capsys.readouterr()
    pins = [JINJA, *(line for line in LOCK.splitlines()[4:] if "==" in line)]
    with_torch = {"torch==2.13.0", "sympy==1.14.0", "mpmath==1.3.0"} if has_torch else set()
    assert shown.out.splitlines() == [pin for pin in pins if pin not in with_torch]
    assert shown.err == f"torch comes from {'the base image' if has_torch else path}\n"
