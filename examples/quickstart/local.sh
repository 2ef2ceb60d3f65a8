#!/usr/bin/env bash
# `make quickstart`: runs `odradek local` from this checkout, without root, Docker and Kubernetes. It needs
# Python 3.11 to 3.13 and Java 17 or later. What it fetches, once, goes to ~/.cache/odradek/quickstart.
# usage: examples/quickstart/local.sh [OPTIONS OF odradek local]
set -euo pipefail
cd "$(dirname "$0")/../.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/odradek"

fail() {
  printf 'odradek: %s\n' "$*" >&2
  exit 2
}

find_python() {
  local name
  for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null &&
      echo "$name" && return
  done
  return 1
}

# A line before, and its seconds after: what is fetched can take minutes.
step() {
  local text=$1 began=$SECONDS
  shift
  printf '  %s ...\n' "$text"
  "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "$text failed; all that it said is in $log"; }
  printf '  %s: %d s\n' "$text" $((SECONDS - began))
}

install_packages() {
  rm -rf "$venv" &&
    "$python" -m venv "$venv" &&
    "$venv/bin/pip" install --disable-pip-version-check --require-hashes -r examples/quickstart/requirements.lock &&
    "$venv/bin/pip" install --disable-pip-version-check --no-deps --editable . &&
    touch "$venv/.ready"
}

fetch_jars() {
  local building
  building=$(mktemp -d "$cache/quickstart/jars.XXXXXX")
  cp -r operator/spark_job/pom.xml operator/spark_job/java "$building" &&
    mvn --batch-mode --file="$building/pom.xml" package &&
    mkdir -p "$(dirname "$jars")" && mv "$building/jars" "$jars" && rm -rf "$building"
}

python=$(find_python) || fail "Python 3.11, 3.12 or 3.13 is missing: install it, or set PYTHON to one of them"
java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
"$java" -version >/dev/null 2>&1 || fail "Java 17 or later is missing: install it with \`apt-get install" \
  "openjdk-21-jre-headless\`, \`dnf install java-21-openjdk-headless\`, or without" \
  "root from https://adoptium.net, and set JAVA_HOME"

mkdir -p "$cache/quickstart"
log="$cache/quickstart/fetch.log"
if [ -e .venv/.ready ] && [ -x .venv/bin/odradek ]; then
  venv=$PWD/.venv
else
  # Another checkout, or other versions, have a folder of their own.
  key=$({ pwd; "$python" --version; cat pyproject.toml examples/quickstart/requirements.lock; } | cksum | cut -d ' ' -f 1)
  venv="$cache/quickstart/venv-$key"
  if [ ! -e "$venv/.ready" ]; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
      fail "Python's module venv is missing: apt-get install python3-venv"
    step "Python packages, 500 MB, once" install_packages
  fi
fi

# Who has installed the connector as a package needs no Maven.
if [ -z "${ODRADEK_SPARK_JARS:-}" ] && ! "$venv/bin/python" -c 'import odradek_spark_jars' 2>/dev/null; then
  # The folder that the tests have, too: its name is that of the recipe.
  key=$("$venv/bin/python" - <<'PYTHON'
import hashlib
from pathlib import Path
recipe = Path("operator/spark_job")
sources = sorted((recipe / "java").rglob("*.java"))
print(hashlib.sha256(b"".join(one.read_bytes() for one in (recipe / "pom.xml", *sources))).hexdigest()[:12])
PYTHON
  )
  jars="$cache/spark-jars/$key"
  # Without Maven and a compiler Spark fetches the Kafka connector itself.
  if [ ! -d "$jars" ] && command -v mvn >/dev/null && command -v javac >/dev/null; then
    step "Jars for Spark, 70 MB, once" fetch_jars
  fi
  [ ! -d "$jars" ] || export ODRADEK_SPARK_JARS=$jars
fi

exec "$venv/bin/python" -m odradek_local "$@"
