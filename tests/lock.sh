#!/bin/bash
# Pins what each image, `make quickstart`, the tests and `make docs` install, with hashes, from the extras in pyproject.toml.
# usage: tests/lock.sh [--upgrade]
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v "$PWD/.venv/bin/uv" uv | head -n 1) || true
if [ -z "$uv" ]; then
  place="${XDG_CACHE_HOME:-$HOME/.cache}/odradek/uv"
  [ -x "$place/bin/uv" ] || { python3 -m venv "$place" && "$place/bin/pip" install --quiet uv; }
  uv="$place/bin/uv"
fi

while read -r extras file; do
  echo "--> $file" >&2
  # The image of the operator is that of consoles, too.
  # shellcheck disable=SC2086 (several words on purpose)
  "$uv" pip compile pyproject.toml --extra ${extras//,/ --extra } --quiet --universal --python-version 3.11 \
    --generate-hashes --no-emit-index-url --no-header --output-file "$file" "$@" >/dev/null
done <<'LOCKS'
broker broker_image/requirements.lock
operator,console operator/requirements.lock
spark operator/spark_job/requirements.lock
local examples/quickstart/requirements.lock
dev tests/requirements.lock
docs tests/docs/requirements.lock
LOCKS
