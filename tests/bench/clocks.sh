#!/usr/bin/env bash
# How long whole installations take, from nothing and with warm caches: a fresh clone with an empty
# HOME, in which `make up` and `make down` run twice. Needs the host's nodes: no cluster may be up.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

git clone --quiet "$checkout" "$scratch/clone"
cd "$scratch/clone"
mkdir "$scratch/home"
export HOME=$scratch/home
unset XDG_CACHE_HOME ODRADEK_CACHE

clock() {
  local what=$1 began=$SECONDS
  shift
  if ! "$@" >"$scratch/log" 2>&1; then
    tail -40 "$scratch/log" >&2
    printf '%s failed after %d s\n' "$what" "$((SECONDS - began))" >&2
    make down >&2 || true
    exit 1
  fi
  printf '%-28s %5d s\n' "$what" "$((SECONDS - began))"
}

clock "setup, empty HOME" make setup
clock "up, empty HOME" make up
clock "down" make down
clock "up, warm caches" make up
clock "down" make down
