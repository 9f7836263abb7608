"""The commands that start ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import StudyError
from pipeline.launch import torchrun as launcher
from pipeline.launch.torchrun import RunPaths, StartPlace, on_this_machine, why_unsupported
from pipeline.machine import image as container
from pipeline.machine import inherited
from pipeline.machine.site import PYXIS, Site
from pipeline.resolved import resolve
from pipeline.study.link import LinkSpec
from pipeline.study.spec import RunSpec
from tests.fake_records import shipped

PATHS = RunPaths(Path("spec.json"), Path("tokens"), Path("out"))


@pytest.fixture
def run() -> RunSpec:
    spec = shipped("smoke", "dps", 4).spec
    world = replace(spec.world, network="loopback", link=None, cores_per_node=None)
    return replace(spec, world=world)


@pytest.mark.parametrize(
    ("cores", "network", "expected"),
    [(2, "loopback", 1), (8, "loopback", 2), (8, "real", 8), (1, "real", 1)],
)
def test_threads_share_the_cores_of_one_machine(run, cores, network, expected) -> None:
    run = replace(run, world=replace(run.world, network=network))
    assert resolve(run).threads_on(cores) == expected


@pytest.fixture
def emulated(run) -> RunSpec:
    world = replace(run.world, network="emulated", link=LinkSpec("1gbit", 1000), cores_per_node=2)
    return replace(run, world=world)


def test_one_process_builds_the_emulated_nodes(emulated, monkeypatch) -> None:
    """With one thread a rank, which is what pacing counts; the other core has the communication."""
    monkeypatch.setattr(launcher, "why_not", lambda link: None)
    ((_, *command),) = planned(emulated, StartPlace(num_cores=2, port=1234))
    assert command[:2] == ["-m", "pipeline.launch.emulated.build"]
    assert resolve(emulated).threads_on(2) == 1


@pytest.mark.parametrize("where", ["image", "inside", "nodes"])
def test_nobody_is_asked_elsewhere_than_on_this_host(run, monkeypatch, where) -> None:
    monkeypatch.setenv("SAMESTEP_PRELOADED_1", "name")
    monkeypatch.setattr(container, "locked_digest", lambda image: "sha256:1")
    monkeypatch.setattr(
        container, "enter", lambda image, site, **_: ("apptainer", "exec", str(image))
    )
    place = StartPlace(num_cores=4, port=1234)
    if where == "image":
        place = replace(place, image=Path("i.sif"))
    elif where == "inside":
        monkeypatch.setattr(container, "digest_from_within", lambda: "sha256:1")
        place = replace(place, image=Path("i.sif"))
    else:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        run, place = over_nodes(run), StartPlace(1, 1234, "10.0.0.1", SRUN)
    for command in planned(run, place):
        assert "pipeline.launch.preloaded" not in command
        assert ("--image-digest=sha256:1" in command) == (where != "nodes")
        assert (command[0] == "apptainer") == (where == "image"), "inside nothing enters it again"


@pytest.mark.parametrize(
    ("cores", "no_network", "said"),
    [
        (7, None, "4 nodes in real time need 8 cores of their own and emulated links, and 7 may"),
        (8, "there is no tc", "no emulated network is here"),
        (8, None, None),
    ],
)
def test_nodes_in_real_time_need_cores_of_their_own(
    emulated, monkeypatch, cores, no_network, said
) -> None:
    monkeypatch.setattr(launcher, "why_not", lambda link: no_network)
    monkeypatch.setattr(launcher, "usable_cores", lambda: list(range(cores)))
    world = replace(emulated.world, real_time=True, yardstick=None)
    assert (said or "None") in refused(replace(emulated, world=world), cores)


@pytest.mark.parametrize(("yardstick", "factor"), [(None, 1), (True, 5)])
def test_emulated_nodes_need_memory(emulated, monkeypatch, yardstick, factor) -> None:
    """The key of their checkpoints has the dilation, as steps have other times at another one."""
    monkeypatch.setattr(launcher, "why_not", lambda link: None)
    monkeypatch.setattr(launcher, "RANK_BYTES", 2**60)
    monkeypatch.setattr(launcher, "usable_cores", lambda: list(range(24)))
    run = replace(emulated, world=replace(emulated.world, yardstick=yardstick))
    reason = refused(run, 24)
    assert "4 ranks on emulated nodes need about" in reason and "lower cluster.nodes" in reason
    assert launcher.network_text(resolve(run)) == f"emulated nodes (dilation {factor})"


SRUN = ("srun", "--nodes=4", "--ntasks=4", "--ntasks-per-node=1")


def over_nodes(run: RunSpec) -> RunSpec:
    return replace(run, world=replace(run.world, network="real"))


def planned(run: RunSpec, place: StartPlace) -> tuple[tuple[str, ...], ...]:
    return launcher.commands(on_this_machine(resolve(run)), PATHS, place)


def refused(run: RunSpec, cores: int = 2, scheduler: tuple[str, ...] = ()) -> str:
    place = StartPlace(cores, 1234, scheduler=scheduler)
    return str(why_unsupported(on_this_machine(resolve(run)), place))


@pytest.mark.parametrize("scheduler", [(), SRUN])
def test_several_machines_are_never_replaced_by_this_one(run, monkeypatch, scheduler) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    reason = refused(over_nodes(run), scheduler=scheduler)
    assert "needs 4 machines" in reason and "profiles/slurm" in reason


def test_a_run_on_one_machine_is_not_given_to_a_scheduler(run) -> None:
    with pytest.raises(StudyError, match=r"one machine was given the scheduler's command srun"):
        planned(run, StartPlace(2, 1, scheduler=SRUN))


def test_a_rank_looks_for_the_stop_where_an_image_has_it(run, monkeypatch, tmp_path) -> None:
    """A shell may name the working folder by a link, and an image has the folder alone."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "scratch")
    monkeypatch.setenv(inherited.STOP, str(tmp_path / "home/stop"))
    for command in planned(run, StartPlace(2, 1234)):
        assert f"--stop-file={tmp_path}/scratch/stop" in command


@pytest.mark.parametrize("network", ["loopback", "emulated", "real"])
def test_a_rank_has_what_study_and_site_state_and_nothing_else_of_its_kind(
    run, monkeypatch, network
) -> None:
    for name in ("OMP_PROC_BIND", "ATEN_CPU_CAPABILITY", "NCCL_DEBUG", "LD_PRELOAD", "ANY_NAME"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "of the caller")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/modules")
    of_site = {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5_0,mlx5_1"}
    of_site |= {"ATEN_CPU_CAPABILITY": "default", "LD_LIBRARY_PATH": "/opt/fabric"}
    site = Site(environment=of_site, scratch="/scratch")
    world = replace(run.world, network=network)
    run = replace(run, world=world, environment={"ATEN_CPU_CAPABILITY": "avx2"})
    environment = launcher.environment(resolve(run), 3, site)
    expected = {
        "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "3", "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        "LD_LIBRARY_PATH": "/opt/fabric:/modules", "TMPDIR": "/scratch",
    }  # fmt: skip
    assert {name: environment.get(name) for name in expected} == expected
    assert inherited.recorded(environment)["NCCL_IB_HCA"] == "mlx5_0,mlx5_1"
    assert not {"OMP_PROC_BIND", "NCCL_DEBUG", "LD_PRELOAD", "ANY_NAME"} & {*environment}
    interface = {"loopback": "lo", "emulated": None, "real": "ib0"}[network]
    assert environment.get("GLOO_SOCKET_IFNAME") == interface


def test_in_an_image_the_study_s_variables_come_before_the_site_s(
    run, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    image = tmp_path / "samestep.sif"
    image.write_bytes(b"")
    image.with_suffix(".json").write_text('{"image_digest": "sha256:1", "format": "squashfs"}')
    of_site = {"NCCL_ALGO": "Tree", "NCCL_IB_HCA": "a,b", "GLOO_SOCKET_IFNAME": "ib0"}
    place = StartPlace(2, 1, image=image, site=Site(runtime=PYXIS, environment=of_site))
    run = replace(run, environment={"NCCL_ALGO": "Ring"})
    for words in planned(run, place):
        assert words[:2] == ("srun", "--overlap") and f"--container-image={image}" in words
        script = words[words.index("-c") + 1]
        assert "export NCCL_ALGO=Ring; export NCCL_IB_HCA=a,b; exec" in script
    (command,) = planned(over_nodes(run), replace(place, scheduler=SRUN))
    assert command[: len(SRUN)] == SRUN and "--overlap" not in command
    assert "export GLOO_SOCKET_IFNAME=ib0; exec" in command[command.index("-c") + 1]
