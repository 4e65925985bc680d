#include "core/launch/options/help.h"

#include <algorithm>

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

namespace {

constexpr std::string_view kDate = "2026-11-24";  // of the last change to the page

/// Text as roff prints it: no escapes, no requests, and a `-` that is a minus in any font.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  if (result.starts_with('.') || result.starts_with('\'')) result.insert(0, "\\&");
  return result;
}

std::string bold(std::string_view text) {
  return "\\fB" + escaped(text) + "\\fR";
}

std::string man_section(std::string_view title) {
  return ".SH " + std::string(title) + "\n";
}

std::string man_heading(const OptionRow& row) {
  std::string text = bold(with_dashes(row.name));
  for (const std::string& spelling : row.spellings) text += ", " + bold(with_dashes(spelling));
  const std::string value = shown_value(row);
  if (row.kind == OptionKind::toggle) {
    return text + escaped(value) + ", " + bold("--no-" + row.name);
  }
  return value.empty() ? text : text + " \\fI" + escaped(value) + "\\fR";
}

std::string entry(const OptionRow& row) {
  std::string text = ".TP\n" + man_heading(row) + "\n" + escaped(row.help) + "\n";
  if (!row.default_value.empty()) text += "Default: " + escaped(row.default_value) + ".\n";
  if (row.group == OptionGroup::settings) {
    text += "The same as the variable " + bold(row.sets) + ".\n";
  }
  return text;
}

std::string options() {
  std::string text = man_section("OPTIONS");
  for (const auto& [group, title] : group_titles()) {
    text += ".SS " + std::string(title) + "\n";
    for (const OptionRow& row : option_table()) {
      if (row.group == group) text += entry(row);
    }
  }
  return text;
}

/// A notice or an advice as a sentence.
std::string sentence(std::string_view text) {
  std::string result(text);
  if (result.front() >= 'a' && result.front() <= 'z') {
    result.front() = static_cast<char>(result.front() - 'a' + 'A');
  }
  return result.ends_with('.') ? result : result + ".";
}

std::string other_launchers() {
  struct Part {
    Standing standing;
    std::string_view title;
    std::string_view otherwise;  ///< where a row says nothing
  };
  constexpr Part kParts[] = {
      {Standing::supported, "That work", "Accepted where it is what horarun does."},
      {Standing::ignored, "That are accepted, and change nothing", "Without effect."},
      {Standing::refused, "That are refused", ""},
  };
  std::string text = man_section("FLAGS OF HOROVODRUN, MPIRUN AND TORCHRUN");
  for (const auto& [standing, title, otherwise] : kParts) {
    text += ".SS " + std::string(title) + "\n";
    for (const OptionRow& row : option_table()) {
      if (row.group != OptionGroup::compatibility || row.standing != standing) continue;
      text += ".TP\n" + man_heading(row) + "\n" +
              escaped(sentence(row.help.empty() ? otherwise : std::string_view(row.help))) + "\n";
    }
  }
  return text;
}

std::string paragraph(std::string_view text) {
  return escaped(text) + "\n";
}

std::string example(std::string_view lines) {
  std::string text(lines);
  return ".nf\n" + escaped(text) + "\n.fi\n";
}

}  // namespace

std::string man_page(std::string_view version) {
  return ".TH HORARUN 1 \"" + std::string(kDate) + "\" \"hora " + escaped(version) +
         "\" \"User Commands\"\n" + man_section("NAME") +
         "horarun \\- start, watch and end data\\-parallel training jobs\n" +
         man_section("SYNOPSIS") +
         ".B horarun\n[\\fIflags\\fR] \\fIprogram\\fR [\\fIits arguments\\fR]\n" +
         man_section("DESCRIPTION") +
         paragraph(
             "Starts the ranks of a job on one or several hosts, watches them, and says what "
             "happened when the job ends.\nThe first argument that is neither a flag nor the "
             "value of one is the program; what follows it belongs to it.") +
         ".PP\n" +
         paragraph(
             "Values stand behind their flag or after \"=\".\nA flag that can be on or off needs "
             "none: --report is --report=on, and --no-report is --report=off.\nLong flags are "
             "taken after one dash, too, and with \"_\" for \"-\".\nOf a flag with one value that "
             "is given "
             "several times the last holds.") +
         options() + man_section("CONFIG FILE") +
         paragraph(
             "A YAML or JSON map from names of flags, without dashes, to values.\nThe command "
             "line wins over the file, the file over the environment.\nUnknown keys and keys "
             "that are given twice are errors.") +
         ".PP\n" +
         example("np: 4\nhosts: [a:2, b:2]\nfusion-threshold: 32MiB\nprefix-output: off") +
         man_section("ENVIRONMENT") + ".TP\n" + bold("HORA_*") + "\n" +
         paragraph("Settings of the library; see above.") + ".TP\n" +
         bold("MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, WORLD_SIZE, RANK") + "\n" +
         paragraph(
             "Where nodes meet, as torchrun has it: used where neither a number of ranks nor "
             "hosts nor a rendezvous are given.\nWithout NNODES and NODE_RANK, WORLD_SIZE and "
             "RANK count nodes.") +
         ".TP\n" + bold(kTokenVariable) + "\n" +
         paragraph("The token of the rendezvous where --token-file is not given.") +
         man_section("EXIT STATUS") +
         paragraph(
             "That of the rank that failed first; 128 and the signal's number where a signal "
             "ended it; 2 for wrong flags; 0 where all ranks have ended well.") +
         man_section("EXAMPLES") +
         example(
             "horarun -np 4 ./train\nhorarun -np 4 -H a:2,b:2 ./train --epochs 10\n"
             "horarun --rendezvous tcp://a:29400 --nnodes 2 --node-rank 0 --nproc-per-node 4 "
             "./train") +
         other_launchers();
}

}  // namespace hora::launch
