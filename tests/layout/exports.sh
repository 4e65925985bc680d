#!/usr/bin/env bash
# A shared library of hora exports what public headers declare, all of it, and besides only what
# other headers mark with HORA_EXPORT, for hora::torch.
# Usage: exports.sh NM LIBRARY ROOT INCLUDE_FOLDER... [-- INCLUDE_FOLDER...]
# Folders are relative to ROOT; those after -- are of libraries that this one uses.
set -euo pipefail
nm=$1 library=$2
cd "$3"
shift 3
own=() all=()
other=false
for folder in "$@"; do
  if [[ $folder == -- ]]; then
    other=true
    continue
  fi
  all+=("$folder")
  $other || own+=("$folder")
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Left out are variables that templates make ("u"): GCC exports them whatever their namespace.
# Names of hora's that the library exports: the components after hora::, without parameters.
"$nm" --dynamic --defined-only --demangle --format=posix "$library" |
  grep -vE ' u [0-9a-f]+ [0-9a-f]*$' > "$work/symbols"
sed -E 's/^(vtable|typeinfo|typeinfo name|guard variable|construction vtable|VTT) for //' \
  "$work/symbols" | grep -oE '^([a-zA-Z_:<>0-9 ]+ )?hora::[A-Za-z_:0-9~]+' |
  sed -E 's/.*(^| )hora::/hora::/; s/:+$//' | sort -u > "$work/exported"

# Functions and data of the global namespace could collide with other libraries'.
awk '$(NF-2) ~ /^[TDBR]$/ || $(NF-1) ~ /^[TDBR]$/ || $NF ~ /^[TDBR]$/' "$work/symbols" |
  grep -vE '(^|[ <(])hora::|^(__bss_start|_edata|_end) ' > "$work/foreign" || true

code_of() { find "$@" -name '*.h' -path '*/hora/*' -print0 | xargs -0 sed -E 's://.*$::'; }
code_of "${all[@]}" > "$work/public"
code_of "${own[@]}" > "$work/own"
find . -name '*.h' -not -path '*/include/hora/*' -not -path './build/*' -print0 |
  xargs -0 -r sed -E 's://.*$::' | { grep 'HORA_EXPORT' || true; } > "$work/marked"

failures=0
report() {
  echo "$1"
  failures=$((failures + 1))
}

while IFS= read -r symbol; do
  report "exported, but outside of namespace hora: $symbol"
done < "$work/foreign"

while IFS= read -r name; do
  last=${name##*::}
  if [[ $name == hora::internal::* ]]; then
    first=${name#hora::internal::}
    grep -qE "\b(${first%%::*}|$last)\b" "$work/marked" ||
      report "exported, but internal and not marked with HORA_EXPORT: $name"
  else
    grep -qE "\b${last#\~}\b" "$work/public" ||
      report "exported, but no public header declares it: $name"
  fi
done < "$work/exported"

# Functions at the left margin, which are declarations; not templates, nor inline ones.
awk '/^template/ { skip = 1; next }
     skip || /^(inline|constexpr|friend|using|typedef|namespace|class|struct|enum|#|\}|\/)/ { skip = 0; next }
     /^[A-Za-z\[].*\(/ { print }' "$work/own" |
  sed -nE 's/^(\[\[nodiscard\]\] )?[A-Za-z_:<>, 0-9*&]* [*&]?([a-z_0-9]+)\(.*/\2/p' |
  sort -u > "$work/declared"
[[ -s $work/declared ]] || report "no functions found in ${own[*]}"
while IFS= read -r function; do
  grep -qE "^hora::(detail::)?$function\$" "$work/exported" ||
    report "declared in a public header, but not exported: $function"
done < "$work/declared"

echo "$(wc -l < "$work/exported") names exported, $(wc -l < "$work/declared") functions declared," \
  "$failures errors"
((failures == 0))
