# The exact environment of a study. BASE_IMAGE brings CUDA and NVIDIA's PyTorch: here 26.06-py3 by its
# digest, for the image `apex` 25.04-py3, which has Apex's amp and an older torch (envs/build_image.py).
# Any image like Debian with Python 3.11 or later will do:
#
#   docker build --tag samestep --build-arg GIT_COMMIT=$(git rev-parse HEAD) .
#
# and --build-arg BASE_IMAGE=python:3.12-bookworm for another base. It needs BuildKit (docker-buildx).
# What each step does stands in envs/image/*.sh, which envs/samestep.def runs as well. `make image` builds
# this and packs it into the one file images/samestep.sif.
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch@sha256:abd110b23600e877173dafc3078385b7c13ddacd7e0c6a6acb0a864586d59622
FROM ${BASE_IMAGE}

USER 0
WORKDIR /opt/samestep-build

COPY envs/image/environment.sh envs/image/1-system.sh envs/image/
RUN sh envs/image/1-system.sh

ARG PIP_ARGS=""
COPY envs/requirements.lock envs/deepspeed.lock envs/
COPY envs/image/2-packages.sh envs/image/lock.py envs/image/
RUN sh envs/image/2-packages.sh
ENV PATH=/opt/samestep/bin:$PATH

COPY envs/build_horovod.py envs/horovod_target.py envs/
COPY envs/image/3-horovod.sh envs/image/
RUN --mount=type=cache,target=/var/cache/samestep sh envs/image/3-horovod.sh

# From here on the project's own code: editing it compiles nothing anew.
COPY pyproject.toml README.md LICENSE ./
COPY pipeline pipeline
COPY envs/image/4-project.sh envs/image/
RUN sh envs/image/4-project.sh

COPY envs/image/5-seal.sh envs/image/check.py envs/image/strategies.py \
    envs/image/content_digest.py envs/image/
# Buildah's cache looks at what a variable is in a RUN and not in a LABEL: above the last RUN, both are made
# anew for another commit.
ARG BASE_IMAGE
ARG GIT_COMMIT=unknown
RUN sh envs/image/5-seal.sh

LABEL org.opencontainers.image.title="Samestep" \
    org.opencontainers.image.description="Parallel pre-training strategies that take the same step" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.base.name="${BASE_IMAGE}" \
    org.opencontainers.image.revision="${GIT_COMMIT}"

USER 1000
WORKDIR /home/samestep
