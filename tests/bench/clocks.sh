#!/usr/bin/env bash
# How long the first minutes take, for docs/start.md: each part begins with a fresh clone and an empty
# HOME, and goes on with the caches that it has made. `quickstart` is `make quickstart ARGS=--once`,
# twice. `up` is `make up` and `make down`, twice; it needs the host's nodes: no cluster may be up.
# usage: tests/bench/clocks.sh [quickstart|up]     without a part: both
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)
case "$*" in
  "") parts=(quickstart up) ;;
  quickstart | up) parts=("$1") ;;
  *)
    printf 'error: %s is no part: give quickstart, up or none\n' "$*" >&2
    exit 2
    ;;
esac
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset XDG_CACHE_HOME XDG_STATE_HOME ODRADEK_CACHE ODRADEK_SPARK_JARS
rows=()

# A clone and a home that no other part has seen.
begin() {
  git clone --quiet "$checkout" "$scratch/$1/clone"
  mkdir "$scratch/$1/home"
  export HOME=$scratch/$1/home
  cd "$scratch/$1/clone"
}

row() {
  rows+=("$(printf '| %s | %s |' "$1" "$2")")
  printf '%-60s %s\n' "$1" "$2"
}

# What the quickstart says of its downloads, and of its own start.
told() {
  sed -nE -e 's/^  (.+, once): ([0-9]+) s$/\1|\2 s/p' \
    -e 's/^All is up after ([0-9.]+) s\..*/`odradek local` alone|\1 s/p' "$scratch/log"
}

clock() {
  local what=$1 began=$SECONDS text seconds
  shift
  if ! "$@" >"$scratch/log" 2>&1; then
    tail -40 "$scratch/log" >&2
    printf '%s failed after %d s\n' "$what" "$((SECONDS - began))" >&2
    [ "${1:-} ${2:-}" != "make up" ] || make down >&2 || true
    exit 1
  fi
  row "$what" "$((SECONDS - began)) s"
  while IFS='|' read -r text seconds; do
    row "... $text" "$seconds"
  done < <(told)
}

kept() {
  row "$1" "$(du -sm "$HOME" | cut -f 1) MB"
}

quickstart() {
  clock '`make quickstart`, empty HOME' make quickstart ARGS=--once
  kept '... what is in HOME then'
  clock '`make quickstart`, warm caches' make quickstart ARGS=--once
}

up() {
  clock '`make setup`, empty HOME' make setup
  clock '`make up`, empty HOME' make up
  clock '`make down`' make down
  clock '`make up`, warm caches' make up
  clock '`make down`' make down
}

for part in "${parts[@]}"; do
  begin "$part"
  "$part"
done
printf '\n| what | on this machine |\n|---|---|\n'
printf '%s\n' "${rows[@]}"
