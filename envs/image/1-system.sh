#!/bin/sh
# Step 1 of the image: Debian packages and the user `samestep`. The Dockerfile and envs/samestep.def run
# the same steps; each leaves nothing behind that differs between two builds.
set -eu
. envs/image/environment.sh
export DEBIAN_FRONTEND=noninteractive

apt-get update
# g++ stays in use: torch.compile calls it when a run starts. NCCL loads the RDMA libraries.
apt-get install --yes --no-install-recommends \
    ca-certificates cmake g++ git iproute2 make python3 python3-dev python3-venv \
    libibverbs1 ibverbs-providers librdmacm1

# Ubuntu's images bring a user 1000 of their own.
owner=$(getent passwd 1000 | cut -d: -f1)
if [ -z "$owner" ]; then
    getent group 1000 >/dev/null || groupadd --gid 1000 samestep
    useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash samestep
elif [ "$owner" != samestep ]; then
    usermod --login samestep --home /home/samestep --move-home "$owner"
fi

# Lists, logs and back-ups differ from build to build. Not /tmp: there Apptainer shows the host's own.
find /var/log -xdev -type f -delete
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/cache/apt/*.bin \
    /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old \
    /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- /etc/subgid-
if [ -e /etc/machine-id ]; then : >/etc/machine-id; fi

# The Debian package follows the base's release; without this pip says late and at length what is amiss.
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: BASE_IMAGE brings $(python3 --version), expected 3.11 or later; give another base" >&2
    exit 1
fi
