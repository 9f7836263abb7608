# Read by every step of the image: what keeps two builds alike.
# shellcheck shell=sh

# Start of 1980, the earliest time that a wheel's archive can hold.
export SOURCE_DATE_EPOCH=315532800 PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
# The value of pip's option to compile, whatever its name says: byte code would hold times.
export PIP_NO_COMPILE=0 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# NVIDIA's images pin other versions for everything that pip installs.
unset PIP_CONSTRAINT
umask 022

# shellcheck disable=SC2034  # for the steps
venv=/opt/samestep
