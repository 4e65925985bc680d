#include <algorithm>

#include "core/launch/options/help.h"
#include "core/launch/options/option_table.h"

namespace hora::launch {
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

std::string section(std::string_view title) {
  return ".SH " + std::string(title) + "\n";
}

std::string heading(const OptionRow& row) {
  std::string text = bold(with_dashes(row.name));
  for (const std::string& spelling : row.spellings) text += ", " + bold(with_dashes(spelling));
  const std::string value = shown_value(row);
  if (row.kind == OptionKind::toggle) {
    return text + escaped(value) + ", " + bold("--no-" + row.name);
  }
  return value.empty() ? text : text + " \\fI" + escaped(value) + "\\fR";
}

std::string entry(const OptionRow& row) {
  std::string text = ".TP\n" + heading(row) + "\n" + escaped(row.help) + "\n";
  if (!row.default_value.empty()) text += "Default: " + escaped(row.default_value) + ".\n";
  if (row.group == OptionGroup::settings) {
    text += "The same as the variable " + bold(row.sets) + ".\n";
  }
  return text;
}

std::string options() {
  std::string text = section("OPTIONS");
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
  std::string text = section("FLAGS OF HOROVODRUN, MPIRUN AND TORCHRUN");
  for (const auto& [standing, title, otherwise] : kParts) {
    text += ".SS " + std::string(title) + "\n";
    for (const OptionRow& row : option_table()) {
      if (row.group != OptionGroup::compatibility || row.standing != standing) continue;
      text += ".TP\n" + heading(row) + "\n" +
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
         "\" \"User Commands\"\n" + section("NAME") +
         "horarun \\- start, watch and end data\\-parallel training jobs\n" + section("SYNOPSIS") +
         ".B horarun\n[\\fIflags\\fR] \\fIprogram\\fR [\\fIits arguments\\fR]\n" +
         section("DESCRIPTION") +
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
         options() + section("CONFIG FILE") +
         paragraph(
             "A YAML or JSON map from names of flags, without dashes, to values.\nThe command "
             "line wins over the file, the file over the environment.\nUnknown keys and keys "
             "that are given twice are errors.") +
         ".PP\n" +
         example("np: 4\nhosts: [a:2, b:2]\nfusion-threshold: 32MiB\nprefix-output: off") +
         section("ENVIRONMENT") + ".TP\n" + bold("HORA_*") + "\n" +
         paragraph("Settings of the library; see above.") + ".TP\n" +
         bold("MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, WORLD_SIZE, RANK") + "\n" +
         paragraph(
             "Where nodes meet, as torchrun has it: used where neither a number of ranks nor "
             "hosts nor a rendezvous are given.\nWithout NNODES and NODE_RANK, WORLD_SIZE and "
             "RANK count nodes.") +
         ".TP\n" + bold(kTokenVariable) + "\n" +
         paragraph("The token of the rendezvous where --token-file is not given.") +
         section("EXIT STATUS") +
         paragraph(
             "That of the rank that failed first; 128 and the signal's number where a signal "
             "ended it; 2 for wrong flags; 0 where all ranks have ended well.") +
         section("EXAMPLES") +
         example(
             "horarun -np 4 ./train\nhorarun -np 4 -H a:2,b:2 ./train --epochs 10\n"
             "horarun --rendezvous tcp://a:29400 --nnodes 2 --node-rank 0 --nproc-per-node 4 "
             "./train") +
         other_launchers();
}

}  // namespace hora::launch
