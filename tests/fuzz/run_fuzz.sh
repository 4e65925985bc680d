#!/usr/bin/env bash
# Runs a libFuzzer target for some seconds, from its corpus. What it finds is printed, and kept in
# the current folder as crash-*, timeout-* or oom-*: fix it, and add the file to the corpus.
# Usage: run_fuzz.sh PROGRAM CORPUS SECONDS
set -euo pipefail
program=$1 corpus=$2 seconds=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/found" "$folder/temporary"
TMPDIR=$folder/temporary "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
  -print_final_stats=1 "$folder/found" "$corpus"
