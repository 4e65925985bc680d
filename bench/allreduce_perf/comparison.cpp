#include "bench/allreduce_perf/comparison.h"

#include <algorithm>
#include <cstdio>
#include <limits>

namespace bench {
namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;
constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

std::string column_of(const Bar& bar) {
  return bar.contender + " " + bar.key;
}

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string right(std::string text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

}  // namespace

const std::vector<Bar>& allreduce_bars() {
  static const std::vector<Bar> bars{
      {"hora_bucket", "vs_mpi", {"mpi", "mpi_out_of_place"}, 3.0, 64 * kib, any},
      {"hora_bucket", "vs_mpi_copy", {"mpi_copy"}, 7.0, 1 * mib, 16 * mib},
      {"hora_bucket", "vs_private_memory", {"private_memory"}, 0.9, 4 * mib, any},
      {"hora", "vs_mpi", {"mpi", "mpi_out_of_place"}, 1.5, 1 * mib, any},
  };
  return bars;
}

std::map<std::string, double> ratios_of(const std::map<std::string, Blocks>& contenders) {
  std::map<std::string, double> ratios;
  for (const Bar& bar : allreduce_bars()) {
    const auto mine = contenders.find(bar.contender);
    if (mine == contenders.end()) continue;
    for (const std::string& peer : bar.peers) {
      const auto other = contenders.find(peer);
      if (other == contenders.end()) continue;
      const double ratio = ratio_of_blocks(other->second, mine->second);
      const auto [found, is_new] = ratios.try_emplace(column_of(bar), ratio);
      if (!is_new) found->second = std::min(found->second, ratio);
    }
  }
  return ratios;
}

std::string table_of_ratios(const std::map<std::size_t, std::map<std::string, double>>& by_size,
                            bool judge) {
  constexpr std::size_t width = 18;
  std::string text = "# How many times faster: medians of neighbouring blocks";
  text += judge ? "; * is below the bar\n" : "; the bars hold for 2 ranks of one node\n";
  std::string contenders = "#           ";
  std::string keys = "#     size  ";
  std::string factors = "#       (B) ";
  for (const Bar& bar : allreduce_bars()) {
    contenders += right(bar.contender, width);
    keys += right(bar.key, width);
    factors += right("(>= " + format("%g", bar.factor) + ")", width);
  }
  text += contenders + "\n" + keys + "\n" + factors + "\n";
  for (const auto& [bytes, ratios] : by_size) {
    text += right(std::to_string(bytes), 11) + " ";
    for (const Bar& bar : allreduce_bars()) {
      const auto found = ratios.find(column_of(bar));
      if (found == ratios.end()) {
        text += right("-", width);
        continue;
      }
      const bool missed =
          judge && bytes >= bar.from && bytes <= bar.to && found->second < bar.factor;
      text += right((missed ? "*" : "") + format("%.2f", found->second), width);
    }
    text += "\n";
  }
  return text;
}

}  // namespace bench
