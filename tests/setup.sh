#!/usr/bin/env bash
# Makes .venv with everything that the tests and the tools of this checkout need, at locked versions.
# On Debian and Ubuntu missing system packages are installed; elsewhere they are named.
set -euo pipefail
cd "$(dirname "$0")/.."

# Package -> program that shows that it is there. Java runs ZooKeeper, Spark, Apache Kafka and, from
# their source, small programs of the tests; Maven fetches jars, kcat is an outside client, strace
# makes disks fail, PostgreSQL is a sink of Spark jobs. Node runs an application of KafkaJS, which npm
# fetches. Prometheus judges the chart's alerts and dashboards. docker-registry takes a release.
declare -A needed=([default-jdk-headless]=javac [maven]=mvn [kcat]=kcat [strace]=strace
  [nodejs]=node [npm]=npm [prometheus]=promtool [postgresql]=pg_ctlcluster
  [docker-registry]=docker-registry)

say() { printf '%s\n' "$*" >&2; }

# Prints which installed Python an interpreter belongs to; nothing where there is none.
base_of() { "$1" -c 'import sys; print(sys._base_executable)' 2>/dev/null || true; }

former=$(base_of .venv/bin/python)

# That of PYTHON; else the one that made .venv; else a common one.
find_python() {
  local name
  for name in ${PYTHON:-} ${former:+"$former"} python3 python3.13 python3.12 python3.11; do
    "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null &&
      echo "$name" && return
  done
  return 1
}

install() {
  say "installing: $*"
  if ! command -v apt-get >/dev/null; then
    say "error: this system has no apt; install what holds: $*"
    exit 1
  fi
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  # Its service would listen on every address; tests start registries of their own on the loopback.
  [[ " $* " != *" docker-registry "* ]] || "${root[@]}" systemctl mask --quiet docker-registry.service || true
  "${root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "$@" >&2
}

missing=()
for package in "${!needed[@]}"; do
  command -v "${needed[$package]}" >/dev/null || missing+=("$package")
done
if python=$(find_python); then
  "$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=("$(basename "$python")-venv")
else
  missing+=(python3 python3-venv)
fi
[ ${#missing[@]} = 0 ] || install "${missing[@]}"
if ! python=$(find_python); then
  say "error: Python 3.11, 3.12 or 3.13 is needed; set PYTHON=... to one of them"
  exit 1
fi

say "making .venv with $("$python" --version) (a few minutes the first time)"
# The modules of one Python do not go with another one.
[ "$(base_of "$python")" = "$former" ] || rm -rf .venv
"$python" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r tests/requirements.lock
.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
touch .venv/.ready
