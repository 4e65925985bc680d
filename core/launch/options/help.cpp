#include "core/launch/options/help.h"

#include "core/launch/options/option_table.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

constexpr std::string_view kAboutSettings =
    "Each is a variable, too, over which the flag wins: --fusion-threshold is "
    "HORA_FUSION_THRESHOLD. Sizes may end in KiB, MiB or GiB, times in us, ms or s. Of those that "
    "are on or off, --report is --report=on, and --no-report is --report=off.";

/// Lines of at most kHelpWidth columns, each with `indent` spaces before it.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string result;
  std::size_t column = 0;
  for (const std::string_view word : split_at_spaces(text)) {
    if (column == 0 || column + 1 + word.size() > kHelpWidth) {
      result += (column == 0 ? "" : "\n") + std::string(indent, ' ');
      column = indent;
    } else {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  return result + "\n";
}

std::string heading(const OptionRow& row) {
  std::string text = shown_spellings(row);
  const std::string value = shown_value(row);
  if (row.kind == OptionKind::toggle) return text + value + ", --no-" + row.name;
  return text + (value.empty() ? "" : " ") + value;
}

std::string section(const GroupTitle& group) {
  std::string text = "\n" + std::string(group.title) + ":\n";
  if (group.group == OptionGroup::settings) text += wrapped(kAboutSettings, 2);
  for (const OptionRow& row : option_table()) {
    if (row.group != group.group) continue;
    text += wrapped(heading(row), 2);
    const std::string value =
        row.default_value.empty() ? "" : " (default: " + row.default_value + ")";
    text += wrapped(row.help + value, 6);
  }
  return text;
}

std::string names_of(Standing standing) {
  std::string names;
  for (const OptionRow& row : option_table()) {
    if (row.group != OptionGroup::compatibility || row.standing != standing) continue;
    names += (names.empty() ? "" : " ") + with_dashes(row.name);
  }
  return names;
}

}  // namespace

std::string help_text() {
  std::string text =
      "Usage: horarun [FLAGS] PROGRAM [ITS ARGUMENTS]\n\n" +
      wrapped(
          "Starts the ranks of a data-parallel job on one or several hosts, watches them, and says "
          "what happened when the job ends. What follows PROGRAM belongs to it.",
          0) +
      "\nExamples:\n"
      "  horarun -np 4 ./train\n"
      "  horarun -np 4 -H a:2,b:2 ./train --epochs 10\n"
      "  horarun --rendezvous tcp://a:29400 --nnodes 2 --node-rank 0 --nproc-per-node 4 ./train\n";
  for (const GroupTitle& group : group_titles()) text += section(group);
  text += "\nFlags of horovodrun, mpirun and torchrun (the man page says what each does):\n";
  text += "  that work:\n" + wrapped(names_of(Standing::supported), 6);
  text += "  that are accepted, and change nothing:\n" + wrapped(names_of(Standing::ignored), 6);
  text +=
      "  that are refused, with what to use instead:\n" + wrapped(names_of(Standing::refused), 6);
  return text;
}

}  // namespace hora::launch
