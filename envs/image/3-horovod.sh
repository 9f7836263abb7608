#!/bin/sh
# Step 3 of the image: Horovod, compiled against the torch of step 2.
#
# The Dockerfile keeps the wheel in a cache mount, so that an unchanged Horovod is compiled once on a
# machine; the key holds what the wheel's own key takes for granted: system, compiler and NCCL.
set -eu
. envs/image/environment.sh

key=$({
    cat /etc/os-release
    c++ --version
    cat /usr/include/nccl.h 2>/dev/null || :
} | sha256sum | cut -c1-16)
export SAMESTEP_CACHE="/var/cache/samestep/$key"

if ! "$venv/bin/python" -m envs.build_horovod --strict; then
    tail -n 50 "$venv/horovod-build.log" >&2
    exit 1
fi
rm -f "$venv/horovod-build.log"
