#include <hora/printable.h>

#include <algorithm>
#include <cstddef>

#include "core/launch/diagnose/diagnosis.h"

namespace hora::launch {

std::string to_text(const Diagnosis& diagnosis) {
  const RankFinding titles{0, "host", "end", "collectives", "phase"};
  std::size_t host = titles.host.size();
  std::size_t end = titles.end.size();
  std::size_t collective = titles.collective.size();
  for (const RankFinding& one : diagnosis.ranks) {
    host = std::max(host, one.host.size());
    end = std::max(end, one.end.size());
    collective = std::max(collective, one.collective.size());
  }
  const auto padded = [](std::string text, std::size_t width) {
    text.resize(std::max(text.size(), width), ' ');
    return text + "  ";
  };
  const auto line = [&](std::string rank, const RankFinding& one) {
    rank.insert(0, rank.size() < 6 ? 6 - rank.size() : 0, ' ');
    std::string text = rank + "  " + padded(one.host, host) + padded(one.end, end) +
                       padded(one.collective, collective) + one.phase;
    text.resize(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = printable(diagnosis.headline) + "\n\n" + line("rank", titles);
  for (const RankFinding& one : diagnosis.ranks) text += line(std::to_string(one.rank), one);
  if (!diagnosis.notes.empty()) text += "\n";
  for (const std::string& note : diagnosis.notes) text += printable(note) + "\n";
  return text;
}

}  // namespace hora::launch
