"""torchrun on one of several nodes."""

import os
import sys
from pathlib import Path

from tests.programs import ran


def test_torchrun_gets_the_place_and_its_own_options(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "assert not {'OMP_PROC_BIND', 'ANY_NAME'} & {*os.environ} and os.environ['KMP_X'] == '1'\n"
        "open(os.environ['GROUP_RANK'] + os.environ['RANK'], 'w')\n"
    )
    options = ["--nnodes=1", "--nproc-per-node=2", "--master-port=0", str(script)]
    command = [sys.executable, "-m", "pipeline.launch.slurm.node", *options]
    env = os.environ | {"SLURM_NODEID": "0", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONPATH": str(Path.cwd()), "KMP_X": "1", "SAMESTEP_STATED": "KMP_X"}
    env |= {"OMP_PROC_BIND": "true", "ANY_NAME": "of a site's start script"}
    done = ran(command, cwd=tmp_path, env=env)
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", "00", "01"}, done.stderr
    env.pop("SLURM_NODEID")
    lost = ran(command, env=env, timeout=120)
    assert lost.returncode == 1 and lost.stderr.startswith("error: SLURM_NODEID is not set")
