#include "core/launch/command/slurm.h"

#include <hora/printable.h>

#include <algorithm>
#include <charconv>

#include "core/launch/command/command.h"
#include "core/launch/command/environment.h"

namespace hora::launch {
namespace {

using Names = std::vector<std::string>;

tl::unexpected<std::string> wrong(std::string_view list, const std::string& why) {
  return tl::unexpected("Slurm's list " + in_quotes(list) + " " + why);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The decimal number at the front of `text`, removed from it; -1 where there is none below 10^9.
long take_number(std::string_view& text) {
  const auto digits =
      static_cast<std::size_t>(std::ranges::find_if_not(text, is_digit) - text.begin());
  long number = -1;
  if (digits > 0 && digits < 10) std::from_chars(text.data(), text.data() + digits, number);
  text.remove_prefix(digits);
  return number;
}

/// `1-3,07` in each of its numbers.
tl::expected<Names, std::string> expand_ranges(std::string_view ranges) {
  Names numbers;
  do {
    const std::string_view text = ranges;
    const long first = take_number(ranges);
    const std::size_t width = text.size() - ranges.size();
    long last = first;
    if (ranges.starts_with('-')) {
      ranges.remove_prefix(1);
      last = take_number(ranges);
    }
    if (first < 0 || last < first) return tl::unexpected(std::string("holds a range that is none"));
    if (!ranges.empty() && ranges.front() != ',') {
      return tl::unexpected(std::string("holds something other than numbers in brackets"));
    }
    if (static_cast<std::size_t>(last - first) >= kMostSlurmHosts - numbers.size()) {
      return tl::unexpected("names more than " + std::to_string(kMostSlurmHosts) + " hosts");
    }
    for (long number = first; number <= last; ++number) {
      std::string digits = std::to_string(number);
      digits.insert(0, width > digits.size() ? width - digits.size() : 0, '0');
      numbers.push_back(std::move(digits));
    }
    const bool more = !ranges.empty();
    if (more) ranges.remove_prefix(1);
    if (!more) return numbers;
  } while (true);
}

/// Each of `names` continued by each of `ends`.
tl::expected<Names, std::string> product(const Names& names, const Names& ends) {
  if (names.size() * ends.size() > kMostSlurmHosts) {
    return tl::unexpected("names more than " + std::to_string(kMostSlurmHosts) + " hosts");
  }
  Names result;
  for (const std::string& name : names) {
    for (const std::string& end : ends) result.push_back(name + end);
  }
  return result;
}

/// One item of the list, brackets included.
tl::expected<Names, std::string> expand_item(std::string_view item) {
  constexpr std::size_t kMostBrackets = 8;
  Names names = {""};
  for (std::size_t brackets = 0; !item.empty(); ++brackets) {
    if (brackets == kMostBrackets) {
      return tl::unexpected("has more than " + std::to_string(kMostBrackets) +
                            " brackets in a name");
    }
    const std::size_t open = std::min(item.find('['), item.size());
    for (std::string& name : names) name += item.substr(0, open);
    item.remove_prefix(open);
    if (item.empty()) break;
    const std::size_t close = item.find(']');
    if (close == std::string_view::npos) return tl::unexpected(std::string("lacks a \"]\""));
    const auto numbers = expand_ranges(item.substr(1, close - 1));
    if (!numbers) return numbers;
    auto more = product(names, *numbers);
    if (!more) return more;
    names = std::move(*more);
    item.remove_prefix(close + 1);
  }
  return names;
}

/// The length of the first item: up to a comma that stands in no brackets.
std::size_t item_length(std::string_view list) {
  bool within = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') within = true;
    if (list[i] == ']') within = false;
    if (list[i] == ',' && !within) return i;
  }
  return list.size();
}

}  // namespace

tl::expected<Names, std::string> expand_host_list(std::string_view text) {
  Names hosts;
  std::string_view rest = text;
  while (true) {
    const std::size_t length = item_length(rest);
    auto names = expand_item(rest.substr(0, length));
    if (!names) return wrong(text, names.error());
    if (hosts.size() + names->size() > kMostSlurmHosts) {
      return wrong(text, "names more than " + std::to_string(kMostSlurmHosts) + " hosts");
    }
    for (std::string& name : *names) {
      if (!is_host_name(name)) return wrong(text, "holds the name " + in_quotes(name));
      hosts.push_back(std::move(name));
    }
    if (length == rest.size()) return hosts;
    rest.remove_prefix(length + 1);
  }
}

tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text) {
  std::vector<int> counts;
  std::string_view rest = text;
  while (true) {
    const long count = take_number(rest);
    long repeated = 1;
    if (rest.starts_with("(x")) {
      rest.remove_prefix(2);
      repeated = take_number(rest);
      if (!rest.starts_with(')')) return wrong(text, "lacks a \")\"");
      rest.remove_prefix(1);
    }
    if (count < 1 || repeated < 1 || (!rest.empty() && rest.front() != ',')) {
      return wrong(text, "is not of the form 2(x3),1");
    }
    if (static_cast<std::size_t>(repeated) > kMostSlurmHosts - counts.size()) {
      return wrong(text, "has numbers for more than " + std::to_string(kMostSlurmHosts) + " hosts");
    }
    counts.insert(counts.end(), static_cast<std::size_t>(repeated), static_cast<int>(count));
    if (rest.empty()) return counts;
    rest.remove_prefix(1);
  }
}

SlurmVariables slurm_variables() {
  return {variable_of_process("SLURM_JOB_NODELIST").value_or(""),
          variable_of_process("SLURM_TASKS_PER_NODE"),
          variable_of_process("SLURM_JOB_CPUS_PER_NODE"),
          variable_of_process("SLURM_CPUS_PER_TASK"),
          variable_of_process("SLURM_NTASKS") || variable_of_process("SLURM_NTASKS_PER_NODE")};
}

tl::expected<std::vector<SlurmHost>, std::string> slurm_hosts(const SlurmVariables& variables) {
  const auto names = expand_host_list(variables.job_nodelist);
  if (!names) return tl::unexpected("SLURM_JOB_NODELIST: " + names.error());
  const bool by_tasks = variables.ntasks_requested && variables.ntasks_per_node;
  const char* const source = by_tasks ? "SLURM_TASKS_PER_NODE" : "SLURM_JOB_CPUS_PER_NODE";
  const auto& text = by_tasks ? variables.ntasks_per_node : variables.cpus_per_node;
  if (!text) return tl::unexpected(std::string(source) + " is not set in this Slurm allocation");
  auto slots = expand_counts(*text);
  if (!slots) return tl::unexpected(std::string(source) + ": " + slots.error());
  if (slots->size() != names->size()) {
    return tl::unexpected(std::string(source) + "=" + in_quotes(*text) + " has numbers for " +
                          std::to_string(slots->size()) + " hosts, SLURM_JOB_NODELIST names " +
                          std::to_string(names->size()));
  }
  int of_a_task = 1;
  if (!by_tasks && variables.cpus_per_task) {
    const auto cores = expand_counts(*variables.cpus_per_task);
    if (!cores) return tl::unexpected("SLURM_CPUS_PER_TASK: " + cores.error());
    of_a_task = cores->front();
  }
  std::vector<SlurmHost> hosts;
  for (std::size_t i = 0; i < names->size(); ++i) {
    hosts.push_back({(*names)[i], std::max(1, (*slots)[i] / of_a_task)});
  }
  return hosts;
}

bool is_allocated(const SlurmVariables& variables, std::string_view host) {
  if (variables.job_nodelist.empty()) return false;
  const auto names = expand_host_list(variables.job_nodelist);
  return names && std::ranges::find(*names, host) != names->end();
}

std::vector<std::string> srun_prefix(const std::string& srun, const std::string& host) {
  return {srun,           "--nodes=1",
          "--ntasks=1",   "--nodelist=" + host,
          "--overlap",    "--cpu-bind=none",
          "--mpi=none",   "--export=ALL",
          "--unbuffered", "--kill-on-bad-exit=0",
          "--input=0",    "--quiet"};
}

}  // namespace hora::launch
