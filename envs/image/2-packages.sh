#!/bin/sh
# Step 2 of the image: the environment /opt/samestep with what envs/requirements.lock and
# envs/deepspeed.lock name.
#
# A base image that has torch keeps it, and only the rest of the lock is installed over it. PIP_ARGS adds
# options to `pip install`, and in step 3 to `pip download`, such as an index. The image's history shows
# it, so no token belongs into it: mount a pip.conf or netrc.
set -eu
. envs/image/environment.sh

lock=envs/requirements.lock
rest=$(mktemp)
share=""
if python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    share=--system-site-packages
fi
python3 -m venv $share "$venv"
"$venv/bin/python" -m envs.image.lock "$lock" >"$rest"

# shellcheck disable=SC2086  # PIP_ARGS is a list of options
install() { "$venv/bin/python" -m pip install ${PIP_ARGS:-} "$@"; }

# The lock is complete, but for the libraries that torch's build for CUDA pins itself, and has hashes of
# all but torch, whose builds differ from index to index; pip takes hashes for all packages or for none.
torch=$(sed -n '/^torch==/p' "$rest")
sed -i '/^torch==/d' "$rest"
install --no-deps --require-hashes --requirement "$rest"
if [ -n "$torch" ]; then
    install "$torch"
elif ! "$venv/bin/python" -c 'import numpy, torch; torch.from_numpy(numpy.arange(3))'; then
    # A torch that was compiled against NumPy 1 knows nothing of NumPy 2. What then misses a newer
    # one is listed by the last step.
    echo "the torch of the base image refuses the NumPy of $lock; the base's own is kept"
    "$venv/bin/python" -m pip uninstall --yes numpy
fi
rm -f "$rest"

# DeepSpeed compiles no operator here: the strategy uses none.
export DS_ACCELERATOR=cpu DS_BUILD_OPS=0
install --no-build-isolation --no-deps --require-hashes --requirement envs/deepspeed.lock
