"""The programs that can build the image, each behind the same few methods.

A builder says why it cannot be used here, fetches the base image, builds, hands over a file's text
from inside the image, and leaves the image as one file: Apptainer its own SIF, Docker and Buildah
squashfs (envs/image/squashfs.py). On this machine no text that was given reaches a shell; inside
the build PIP_ARGS is a shell's words, so it is its caller who vouches for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from envs.build_horovod import last_error, run_logged
from envs.image.squashfs import TIMESTAMP, pack_command, write_environment

TAG = "localhost/samestep:latest"


class ImageError(Exception):
    """No image; the text is one line with the reason and the fix."""


@dataclass(frozen=True)
class Recipe:
    """Sources of an image, and the file of its log."""

    base_image: str
    git_commit: str
    pip_args: str
    options: tuple[str, ...]
    log: Path

    @property
    def arguments(self) -> list[str]:
        """Build arguments as every builder takes them."""
        values = {
            "BASE_IMAGE": self.base_image,
            "GIT_COMMIT": self.git_commit,
            "PIP_ARGS": self.pip_args,
        }
        pairs = [f"{name}={value}" for name, value in values.items() if value]
        return [word for pair in pairs for word in ("--build-arg", pair)]

    def run(self, command: Sequence[str], label: str, hint: str = "") -> None:
        """Run with the output in the log; raises ImageError with its most telling line."""
        if not run_logged(command, self.log, os.environ, name="image", label=label):
            raise ImageError(
                f"{label} failed: {last_error(self.log)}; {hint or f'the whole log is {self.log}'}"
            )

    def base_hint(self) -> str:
        """The fix for a base image that cannot be had."""
        return (
            f"the base image {self.base_image} cannot be had: give one that is here or can be "
            f"reached, such as BASE_IMAGE=python:3.12-bookworm; the whole log is {self.log}"
        )


def output(*command: str) -> str:
    """Standard output of a short command; raises ImageError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ImageError(f"{' '.join(command[:2])} failed: {last}")
    return done.stdout.strip()


def refused(program: str, *question: str) -> str | None:
    """Reason why `program` cannot be used: it is missing, or `question` fails. None if it can."""
    if shutil.which(program) is None:
        return "is not installed"
    try:
        output(program, *question)
    except ImageError as error:
        return f"is installed, but {error}"
    return None


class Docker:
    """Docker with an engine that answers, and BuildKit."""

    name = "docker"
    _image = TAG
    """The image that was built, which is read and packed whatever the tag then names."""

    def refusal(self) -> str | None:
        """Reason why it cannot be used here."""
        # `docker info` ends well in some versions where no engine answers
        question = ("docker", "version", "--format", "{{.Server.Version}}")
        if reason := refused(*question):
            return reason
        if not output(*question):
            return "is installed, but no engine answers; start it"
        if refused("docker", "buildx", "version"):
            return (
                "is installed, but without BuildKit, which the Dockerfile needs "
                "(package docker-buildx, of Docker's own docker-buildx-plugin)"
            )
        return None

    def build(self, recipe: Recipe) -> str:
        """Build and tag the image; returns its OCI digest."""
        if refused("docker", "image", "inspect", recipe.base_image) is not None:
            hint = recipe.base_hint()
            recipe.run(["docker", "pull", recipe.base_image], "fetching the base image", hint)
        epoch = ["--build-arg", f"SOURCE_DATE_EPOCH={TIMESTAMP}"]
        # `docker build` may be the old builder all the same, by a version or a variable
        command = ["docker", "buildx", "build", "--load", "--tag", TAG, *epoch, *recipe.arguments]
        recipe.run([*command, *recipe.options, "."], "building the image")
        self._image = output("docker", "image", "inspect", "--format", "{{.Id}}", TAG)
        return self._image

    def base_digest(self, recipe: Recipe) -> str | None:
        """Digest under which a registry has the base image; None for one made here."""
        form = "{{json .RepoDigests}}"
        names = output("docker", "image", "inspect", "--format", form, recipe.base_image)
        digests = [name.partition("@")[2] for name in json.loads(names)]
        return digests[0] if digests else None

    def read(self, path: str) -> str:
        """Text of the file `path` inside the image."""
        with self._container() as container, tempfile.TemporaryDirectory() as folder:
            output("docker", "cp", f"{container}:{path}", f"{folder}/file")
            return Path(folder, "file").read_text(encoding="utf-8")

    def pack(self, target: Path, recipe: Recipe) -> None:
        """Write the flattened image as squashfs."""
        question = ["--format", "{{json .Config.Env}}", self._image]
        variables = output("docker", "image", "inspect", *question)
        with self._container() as container, tempfile.TemporaryDirectory() as folder:
            added = write_environment(json.loads(variables) or [], Path(folder))
            output("docker", "cp", str(added), f"{container}:/")
            if not _pack_export(container, pack_command("-", target, "-tar"), recipe.log):
                raise ImageError(f"packing the image failed; the whole log is {recipe.log}")

    @contextmanager
    def _container(self) -> Iterator[str]:
        container = output("docker", "create", self._image, "true")
        try:
            yield container
        finally:
            output("docker", "rm", container)


def _pack_export(container: str, command: Sequence[str], log: Path) -> bool:
    """Feed what `docker export` writes to `command`; True when both end well."""
    with (
        log.open("ab") as stream,
        subprocess.Popen(
            ["docker", "export", container], stdout=subprocess.PIPE, stderr=stream
        ) as export,
    ):
        try:
            packer = subprocess.run(command, stdin=export.stdout, stdout=stream, stderr=stream)
            if packer.returncode == 0:
                export.communicate()  # the padding behind the archive, and its end
        finally:
            # A packer that ended early, on a full disk, leaves it writing forever.
            export.kill()
    return packer.returncode == 0 and export.returncode == 0


class Buildah:
    """Buildah, as root or with a user's own namespace."""

    name = "buildah"
    _image = TAG
    """The image that was built, which is read and packed whatever the tag then names."""

    def refusal(self) -> str | None:
        """Reason why it cannot be used here."""
        return refused("buildah", "unshare", "true") if os.geteuid() else refused("buildah", "info")

    def build(self, recipe: Recipe) -> str:
        """Build and tag the image; returns its OCI digest."""
        hint = recipe.base_hint()
        recipe.run(["buildah", "pull", recipe.base_image], "fetching the base image", hint)
        with tempfile.TemporaryDirectory() as folder:
            digest = Path(folder, "digest")
            fixed = ["--timestamp", TIMESTAMP, "--identity-label=false", "--pull-never", "--layers"]
            command = ["buildah", "build", "--tag", TAG, "--iidfile", str(digest), *fixed]
            # Without an OCI runtime only chroot is left.
            runtime = any(map(shutil.which, ("crun", "runc"))) or "BUILDAH_ISOLATION" in os.environ
            isolation = [] if runtime else ["--isolation", "chroot"]
            # a step that fails leaves its container behind otherwise
            command += ["--force-rm", *isolation, *recipe.arguments, *recipe.options, "."]
            recipe.run(command, "building the image")
            self._image = digest.read_text(encoding="utf-8").strip()
        return self._image

    def base_digest(self, recipe: Recipe) -> str | None:
        """Digest of the base image, under which the registry that gave it has it."""
        form = ["--digests", "--format", "{{.Digest}}"]
        digests = output("buildah", "images", *form, recipe.base_image).splitlines()
        return digests[0] if digests and digests[0].startswith("sha256:") else None

    def read(self, path: str) -> str:
        """Text of the file `path` inside the image."""
        with self._container() as container:
            script = 'cat "$(buildah mount "$1")$2"'
            return output(*self._unshare(), "sh", "-c", script, "sh", container, path)

    def pack(self, target: Path, recipe: Recipe) -> None:
        """Write the flattened image as squashfs."""
        config = output("buildah", "inspect", "--type", "image", self._image)
        variables = json.loads(config)["OCIv1"]["config"].get("Env", [])
        with self._container() as container, tempfile.TemporaryDirectory() as folder:
            added = write_environment(variables, Path(folder))
            output("buildah", "copy", container, str(added), f"/{added.name}")
            # Without root the mount is seen from inside the user's namespace alone.
            script = 'm=$(buildah mount "$1") && shift && cd "$m" && exec "$@"'
            command = pack_command(".", target.resolve())
            inside = [*self._unshare(), "sh", "-c", script, "sh", container, *command]
            recipe.run(inside, "packing the image")

    def _unshare(self) -> list[str]:
        return ["buildah", "unshare"] if os.geteuid() else []

    @contextmanager
    def _container(self) -> Iterator[str]:
        container = output("buildah", "from", "--pull-never", self._image)
        try:
            yield container
        finally:
            output("buildah", "rm", container)


class Apptainer:
    """Apptainer by itself, from envs/samestep.def."""

    name = "apptainer"
    _file: Path | None = None
    """The image that was built."""

    def refusal(self) -> str | None:
        """Reason why it cannot be used here."""
        return refused("apptainer", "--version")

    def build_file(self, target: Path, recipe: Recipe) -> None:
        """Build straight into `target`."""
        # Without this variable a SIF holds the time and a random number.
        command = ["env", f"SOURCE_DATE_EPOCH={TIMESTAMP}", "apptainer", "build", "--force"]
        command += [*recipe.arguments, *recipe.options, str(target), "envs/samestep.def"]
        recipe.run(command, "building the image")
        self._file = target

    def base_digest(self, recipe: Recipe) -> str | None:
        """None: Apptainer keeps no digest of the image that it builds from."""

    def read(self, path: str) -> str:
        """Text of the file `path` inside the image."""
        return output("apptainer", "exec", str(self._file), "cat", path)


Builder = Union[Docker, Buildah, Apptainer]  # noqa: UP007  (an older Python is told so, too)
BUILDERS: tuple[type[Builder], ...] = (Docker, Buildah, Apptainer)
