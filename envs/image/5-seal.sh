#!/bin/sh
# Step 5 of the image: check what was built, remove the sources, write the image's own digest.
set -eu
. envs/image/environment.sh

build=$PWD
python=$venv/bin/python

"$python" -m envs.image.check "$venv/versions.json" >imported.txt
# In a read-only image Python could never keep the byte code of what every rank imports (5 s of a start).
# Byte code of this kind holds no time, so it stays valid under any runtime and equal in any build.
"$python" -m compileall -q -f --invalidation-mode unchecked-hash -i imported.txt

work=$(mktemp -d)
cp envs/image/content_digest.py "$work"
cd /
rm -rf "$build"
"$python" "$work/content_digest.py" / >/etc/samestep-image-digest.new
mv /etc/samestep-image-digest.new /etc/samestep-image-digest
rm -rf "$work"
cat /etc/samestep-image-digest
