#!/usr/bin/env bash
# Allowed includes: frameworks -> ops -> core; examples and bench use public headers only (but for
# bench/scale, which simulates the ranks of core and ops); a
# public header includes public headers only, for the others are not installed. What frameworks may
# include of core and ops beside these is listed in frameworks/torch/CMakeLists.txt.
# Usage: layering.sh ROOT
set -euo pipefail
cd "$1"

failures=0 files_read=0

# Includes of `folder` that match `pattern` (over what stands between the quotes or brackets,
# delimiters included) are errors.
forbid() {
  local folder=$1 why=$2 pattern=$3 files
  mapfile -d '' -t files < <(
    find "$folder" -path bench/scale -prune -o -type f \
      \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0)
  ((${#files[@]} > 0)) || return 0
  files_read=$((files_read + ${#files[@]}))
  if grep -nHE "^[[:space:]]*#[[:space:]]*include[[:space:]]*$pattern" "${files[@]}"; then
    echo "  ^ $why"
    failures=$((failures + 1))
  fi
}

mpi='[<"]mpi(-ext)?\.h[">]'
gpu='[<"](cuda|nccl|cudnn|cublas)[A-Za-z0-9_./]*[">]'
torch='[<"](torch|ATen|c10|caffe2)/|[<"]hora/torch\.h[">]'

if [[ -d core ]]; then
  forbid core "core knows no other folder" '"(ops|frameworks|examples|bench|tests)/'
  forbid core "core knows no MPI, CUDA, NCCL or LibTorch" "($mpi|$gpu|$torch)"
  # Of core's folders each includes itself and those after it here (core/README.md).
  while read -r folder allowed; do
    [[ -d core/$folder ]] || continue
    others=''
    for other in core/*/; do
      other=${other#core/} && other=${other%/}
      [[ " include base $folder $allowed " == *" $other "* ]] || others+=${others:+|}$other
    done
    forbid "core/$folder" "core/$folder includes of core's folders only: ${allowed:-none}" \
      "\"core/($others)/"
  done << 'END'
api engine plan trace control_block
launch flight
engine negotiation messages plan flight trace control_block
negotiation messages control_block
messages negotiation control_block
plan messages negotiation control_block
flight messages negotiation
trace
control_block
base
END
fi
if [[ -d ops ]]; then
  forbid ops "ops knows only core" '"(frameworks|examples|bench|tests)/'
  forbid ops "ops knows no LibTorch" "($torch)"
  for folder in ops/*/; do
    case $folder in
      ops/mpi/ | ops/context/) continue ;;
    esac
    forbid "${folder%/}" "only ops/mpi and ops/context know MPI" "($mpi|\"ops/(mpi|context)/)"
  done
fi
if [[ -d frameworks ]]; then
  forbid frameworks "frameworks know only core and ops" '"(examples|bench|tests)/'
  forbid frameworks "spdlog and LibTorch do not go together: core/base/diagnostics.h" \
    '("core/base/log\.h"|<spdlog/)'

  # A file without the list allows nothing.
  list=frameworks/torch/CMakeLists.txt
  allowed=$(sed -n '/^set(HORA_HEADERS_FOR_FRAMEWORKS$/,/)/p' "$list" | sed '1d; s/[ )]//g; /^$/d')
  included=$(find frameworks \( -name '*.h' -o -name '*.cpp' \) -exec \
    sed -nE 's,^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]((core|ops)/[^">]*)[">].*,\1,p' {} + |
    sort -u)
  refused=$(comm -13 <(sort -u <<< "$allowed") <(printf '%s' "${included:+$included$'\n'}"))
  for header in $refused; do
    grep -rnF "$header" frameworks --include='*.h' --include='*.cpp'
    echo "  ^ frameworks may not include it: it is not listed in $list"
    failures=$((failures + 1))
  done
  for header in $(comm -23 <(sort -u <<< "$allowed") <(printf '%s' "${included:+$included$'\n'}")); do
    echo "$list: $header is listed, but no framework includes it"
    failures=$((failures + 1))
  done
fi

public_headers=()
for include in core/include ops/mpi/include frameworks/torch/include; do
  [[ -d $include ]] || continue
  forbid "$include" "a public header includes public headers only" '("|<(core|ops|frameworks)/)'
  while IFS= read -r header; do
    public_headers+=("${header//./\\.}")
  done < <(cd "$include" && find . -name '*.h' -printf '%P\n')
done
public=$(IFS='|' && echo "${public_headers[*]}")

for folder in examples bench; do
  [[ -d $folder ]] || continue
  forbid "$folder" "$folder uses public headers only" '[<"](core|ops|frameworks|tests)/'
  if grep -rnHoE --include='*.h' --include='*.cpp' '#[[:space:]]*include[[:space:]]*[<"]hora/[^">]*' \
    "$folder" | grep -vE "[<\"]($public)\$"; then
    echo "  ^ no public header of hora has this name"
    failures=$((failures + 1))
  fi
done

((files_read > 0)) || { echo "No sources found in $PWD"; exit 1; }
echo "$failures rules broken"
((failures == 0))
