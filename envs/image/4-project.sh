#!/bin/sh
# Step 4 of the image: the project itself. The checkout that a run works in comes before it on the path.
set -eu
. envs/image/environment.sh

"$venv/bin/python" -m pip install --no-deps --no-build-isolation --no-index .
