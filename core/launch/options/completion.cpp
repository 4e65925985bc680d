#include "core/launch/options/help.h"
#include "core/launch/options/option_table.h"

namespace hora::launch {
namespace {

/// The spellings as patterns of a `case`, in the form to which the script brings its arguments: one
/// dash, no underscores.
std::string patterns(const OptionRow& row) {
  std::string text = "-" + row.name;
  for (const std::string& spelling : row.spellings) text += "|-" + spelling;
  return text;
}

/// Rows for which `holds`, as one pattern; matches nothing where there are none.
template <class Predicate>
std::string patterns_where(Predicate holds) {
  std::string text;
  for (const OptionRow& row : option_table()) {
    if (holds(row)) text += (text.empty() ? "" : "|") + patterns(row);
  }
  return text;
}

std::string offered_flags() {
  std::string text;
  const auto add = [&](const std::string& flag) { text += (text.empty() ? "" : " ") + flag; };
  for (const OptionRow& row : option_table()) {
    if (row.standing != Standing::supported) continue;
    add(with_dashes(row.name));
    for (const std::string& spelling : row.spellings) add(with_dashes(spelling));
    if (row.kind == OptionKind::toggle) add("--no-" + row.name);
  }
  return text;
}

std::string choices() {
  std::string text;
  for (const OptionRow& row : option_table()) {
    if (row.choices.empty() || row.kind == OptionKind::toggle) continue;
    text += "      " + patterns(row) + ") words='";
    for (const std::string& choice : row.choices) {
      text += (choice == row.choices.front() ? "" : " ") + choice;
    }
    text += "' ;;\n";
  }
  return text;
}

constexpr std::string_view kBegin =
    R"(# bash completion for horarun: source <(horarun --completion bash)
_horarun() {
  local word=${COMP_WORDS[COMP_CWORD]} flag='' argument='' words='' i=0 values=0 toggle=0
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    argument=${COMP_WORDS[i]}
    if [[ $argument == = ]]; then
      continue
    elif ((values > 0)); then
      values=$((values - 1))
      continue
    elif ((toggle > 0)) && [[ $argument == on || $argument == off || $argument == auto ]]; then
      toggle=0
      continue
    elif [[ $argument != -* || $argument == -- ]]; then
      [[ $argument == -- ]] && i=$((i + 1))
      if declare -F _command_offset >/dev/null; then
        _command_offset "$i"
      else
        compopt -o default
      fi
      return
    fi
    argument=${argument//_/-}
    [[ $argument == --* ]] && argument=${argument#-}
    flag=$argument
    toggle=0
    case $argument in
)";

constexpr std::string_view kAfterArities = R"(    esac
  done
  [[ $word == = ]] && word=''
  if ((values > 0)); then
    case $flag in
)";

constexpr std::string_view kAfterChoices = R"(    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  elif [[ $word == -* ]]; then
)";

constexpr std::string_view kEnd = R"(    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  elif [[ $word == */* ]]; then
    compopt -o default
  else
    mapfile -t COMPREPLY < <(compgen -c -- "$word")
  fi
}
complete -F _horarun horarun
)";

}  // namespace

std::string bash_completion() {
  std::string text(kBegin);
  text += "      " +
          patterns_where([](const OptionRow& row) { return row.kind == OptionKind::value; }) +
          ") values=1 ;;\n";
  text += "      " +
          patterns_where([](const OptionRow& row) { return row.kind == OptionKind::pair; }) +
          ") values=2 ;;\n";
  text += "      " +
          patterns_where([](const OptionRow& row) { return row.kind == OptionKind::toggle; }) +
          ") toggle=1 ;;\n";
  text += kAfterArities;
  text += "      " +
          patterns_where([](const OptionRow& row) { return row.completes == Completes::files; }) +
          ")\n        compopt -o filenames\n"
          "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n        return\n        ;;\n";
  text += "      " +
          patterns_where([](const OptionRow& row) { return row.completes == Completes::folders; }) +
          ")\n        compopt -o filenames\n"
          "        mapfile -t COMPREPLY < <(compgen -d -- \"$word\")\n        return\n        ;;\n";
  text += choices();
  text += kAfterChoices;
  text += "    words='" + offered_flags() + "'\n";
  text += kEnd;
  return text;
}

}  // namespace hora::launch
