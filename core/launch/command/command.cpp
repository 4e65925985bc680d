#include "core/launch/command/command.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>

#include "core/launch/control/system.h"
#include "core/launch/text.h"

namespace hora::launch {

std::string as_shell_word(std::string_view word) {
  if (is_made_of(word, "_@%+=:,./-")) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string as_shell_line(const Command& command) {
  std::string line;
  for (const Variable& variable : command.environment) {
    line += fmt::format("{}={} ", variable.name, as_shell_word(variable.value));
  }
  for (const std::string& argument : command.arguments) {
    const bool first = &argument == &command.arguments.front();
    const std::string word = as_shell_word(argument);
    // A first word with '=' would be read as an assignment.
    const bool quote = first && word == argument && argument.find('=') != std::string::npos;
    line += (first ? "" : " ") + (quote ? "'" + word + "'" : word);
  }
  return line;
}

std::vector<std::string> shell_command(std::string text) {
  std::size_t begin = 0;  // of the command, behind the settings
  for (std::size_t end; (end = text.find(';', begin)) != text.npos; begin = end + 1) {
    const std::string_view setting = trimmed(std::string_view(text).substr(begin, end - begin));
    if (!setting.starts_with("export ") && !is_variable_name(setting.substr(0, setting.find('='))))
      break;
  }
  return {"/bin/sh", "-c", text.insert(begin, "exec ")};
}

namespace {

constexpr std::string_view kDigits = "0123456789ABCDEF";

bool is_plain(const char& c) {
  return is_made_of({&c, 1}, "._/=+-");
}

bool is_executable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

constexpr std::string_view kPrefixes =
    "HORA_ NCCL_ UCX_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ BLIS_ DNNL_ ONEDNN_ CUDA_ CUBLAS_ CUDNN_ "
    "TORCH_ PYTORCH_ ATEN_ FI_ GLOO_ MALLOC_ ASAN_ UBSAN_ TSAN_ LSAN_ OMPI_MCA_ PRTE_MCA_ "
    "MPIR_CVAR_";

constexpr std::string_view kNames =
    "PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CONDA_PREFIX GLIBC_TUNABLES LANG LC_ALL LC_CTYPE "
    "TZ OPAL_PREFIX PRTE_PREFIX PMIX_PREFIX XLA_FLAGS OMPI_ALLOW_RUN_AS_ROOT "
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM PRTE_ALLOW_RUN_AS_ROOT";

/// mpirun sets these for its own processes; a launcher within another job has them, too. (HORARUN_*
/// begins with none of the prefixes above.)
constexpr std::string_view kNever = "OMPI_MCA_orte_ OMPI_MCA_ess_ OMPI_MCA_initial_wdir";

bool begins_with_any(std::string_view name, std::string_view prefixes) {
  return std::ranges::any_of(split_at_spaces(prefixes),
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// Rank, size, and both on the host: Open MPI's, hydra's.
constexpr std::array<std::array<const char*, 4>, 2> kRankVariables = {
    {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE"},
     {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}}};

}  // namespace

std::string encode_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &words.front()) text += ',';
    for (const char c : word) {
      const bool plain = is_plain(c) && !(text.empty() && c == '-');
      text += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return text;
}

tl::expected<std::vector<std::string>, std::string> decode_words(std::string_view text) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ',') {
      words.emplace_back();
      continue;
    }
    if (is_plain(c)) {
      words.back() += c;
      continue;
    }
    const bool complete = c == '%' && i + 2 < text.size();
    const std::size_t high = complete ? kDigits.find(text[i + 1]) : std::string_view::npos;
    const std::size_t low = complete ? kDigits.find(text[i + 2]) : std::string_view::npos;
    if (high == std::string_view::npos || low == std::string_view::npos) {
      return tl::unexpected(
          fmt::format("the words {} are not encoded: byte {} is neither plain nor of the form %XX",
                      in_quotes(text), i));
    }
    words.back() += static_cast<char>(high << 4U | low);
    i += 2;
  }
  return words;
}

std::string find_program(const std::string& name, std::string_view search_path) {
  std::error_code error;
  if (name.find('/') != std::string::npos) {
    const std::filesystem::path absolute = std::filesystem::absolute(name, error);
    return !error && is_executable(absolute) ? absolute.string() : std::string();
  }
  while (!name.empty() && !search_path.empty()) {
    const std::size_t end = std::min(search_path.find(':'), search_path.size());
    const std::filesystem::path folder(search_path.substr(0, end));
    search_path.remove_prefix(std::min(end + 1, search_path.size()));
    // A relative folder is another one on each host.
    if (folder.is_absolute() && is_executable(folder / name)) return folder / name;
  }
  return {};
}

std::string program_from(const std::string& folder, const std::string& program) {
  if (program.find('/') == std::string::npos || program.starts_with('/')) return program;
  return (std::filesystem::path(folder) / program).lexically_normal();
}

tl::expected<std::string, std::string> inspect_program(const std::string& program,
                                                       std::string_view search_path) {
  const auto failure = [&](const std::string& why) {
    return tl::unexpected(fmt::format("the program {} cannot be run: {}", in_quotes(program), why));
  };
  std::string path = program;
  if (program.find('/') == std::string::npos) {
    path = find_program(program, search_path);
    if (path.empty()) {
      return failure(
          fmt::format("it is in none of the folders of PATH ({}); for one in this folder write {}",
                      printable(search_path), in_quotes("./" + program)));
    }
  }
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return failure("it is a folder");
  if (error) return failure(error.message());
  if (!std::filesystem::is_regular_file(path, error)) return failure("it is no regular file");
  if (::access(path.c_str(), X_OK) != 0) {
    return failure("it is not executable for this user (chmod +x)");
  }
  return path;
}

bool is_forwarded(std::string_view name) {
  return !begins_with_any(name, kNever) &&
         (lists(kNames, name) || begins_with_any(name, kPrefixes));
}

std::span<const char* const> environment_of_process() noexcept {
  std::size_t count = 0;
  while (environ[count] != nullptr) ++count;
  return {environ, count};
}

std::optional<std::string> variable_of_process(std::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Variables forwarded_variables(std::span<const char* const> environment,
                              const std::vector<std::string>& named) {
  Variables variables;
  for (const char* const entry : environment) {
    const std::string_view text(entry == nullptr ? "" : entry);
    const std::size_t equals = text.find('=');
    const std::string name(text.substr(0, equals));
    const bool is_named = std::ranges::find(named, name) != named.end();
    if (equals == text.npos || !is_variable_name(name)) continue;
    if (is_named || is_forwarded(name)) variables.try_emplace(name, text.substr(equals + 1));
  }
  return variables;
}

std::vector<Variable> network_variables(const std::vector<std::string>& interfaces, bool has_rdma) {
  if (interfaces.empty()) return {};
  const std::string names = fmt::format("{}", fmt::join(interfaces, ","));
  std::vector<Variable> variables = {{"NCCL_SOCKET_IFNAME", "=" + names},
                                     {"GLOO_SOCKET_IFNAME", interfaces.front()},
                                     {"FI_TCP_IFACE", interfaces.front()}};
  if (!has_rdma) variables.push_back({"UCX_NET_DEVICES", names});
  return variables;
}

tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text) {
  std::vector<int> counts;
  for (const std::string_view part : split(text, ',')) {
    const std::string item(part);
    int count = 0, repeated = 1, end = 0;
    std::sscanf(item.c_str(), "%9d%n(x%9d)%n", &count, &end, &repeated, &end);
    if (count < 1 || repeated < 1 || static_cast<std::size_t>(end) != item.size() ||
        static_cast<std::size_t>(repeated) + counts.size() > kMostRanks) {
      return tl::unexpected(
          fmt::format("Slurm's list {} is not of the form 2(x3),1", in_quotes(text)));
    }
    counts.insert(counts.end(), static_cast<std::size_t>(repeated), count);
  }
  return counts;
}

tl::expected<std::vector<HostSlots>, std::string> slurm_hosts(const EnvironmentLookup& lookup) {
  constexpr std::chrono::seconds kLimit{10};
  const std::string list = lookup("SLURM_JOB_NODELIST").value_or("");
  if (list.empty()) return {};
  const auto fail = [&](const std::string& why) {
    return tl::unexpected(fmt::format("SLURM_JOB_NODELIST={}: {}", in_quotes(list), why));
  };
  const std::string scontrol = find_program("scontrol", lookup("PATH").value_or(""));
  if (scontrol.empty()) {
    return fail("scontrol, which says its hosts, is not on PATH; name the hosts by -H");
  }
  const auto names = captured_output({scontrol, "show", "hostnames", list}, kLimit);
  if (!names) return fail(names.error());
  std::vector<HostSlots> hosts;
  for (const std::string_view name : split_at_spaces(names->text)) {
    hosts.push_back({.name = std::string(name)});
    if (names->status != 0 || !is_host_name(name))
      return fail("scontrol " + in_quotes(names->text));
  }
  const bool by_tasks =
      lookup("SLURM_TASKS_PER_NODE") && (lookup("SLURM_NTASKS") || lookup("SLURM_NTASKS_PER_NODE"));
  const char* const source = by_tasks ? "SLURM_TASKS_PER_NODE" : "SLURM_JOB_CPUS_PER_NODE";
  const auto slots = expand_counts(lookup(source).value_or(""));
  const auto cores = expand_counts(lookup("SLURM_CPUS_PER_TASK").value_or("1"));
  if (!slots) return tl::unexpected(fmt::format("{}: {}", source, slots.error()));
  if (!cores) return tl::unexpected("SLURM_CPUS_PER_TASK: " + cores.error());
  if (slots->size() != hosts.size()) {
    return fail(fmt::format("it names {} hosts, but {} has numbers for {} hosts", hosts.size(),
                            source, slots->size()));
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    hosts[i].slots = std::max(1, (*slots)[i] / (by_tasks ? 1 : cores->front()));
  }
  return hosts;
}

std::vector<std::string> srun_prefix(const std::string& srun, const std::string& host) {
  std::vector<std::string> words{srun, "--nodelist=" + host};
  for (const std::string_view word : split_at_spaces(
           "--nodes=1 --ntasks=1 --overlap --cpu-bind=none --mpi=none --export=ALL --unbuffered "
           "--kill-on-bad-exit=0 --input=0 --quiet")) {
    words.emplace_back(word);
  }
  return words;
}

tl::expected<RankPlace, std::string> rank_of_environment(const EnvironmentLookup& lookup) {
  for (const auto& names : kRankVariables) {
    if (!lookup(names[0])) continue;
    std::array<int, 4> numbers{};
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string text = lookup(names[i]).value_or("");
      const auto number = parse_integer(text, 0, std::numeric_limits<int>::max());
      if (!number) {
        return tl::unexpected(fmt::format("{} is set, but {} is {}, which is no number of a rank",
                                          names[0], names[i], in_quotes(text)));
      }
      numbers[i] = *number;
    }
    return RankPlace{numbers[0], numbers[1], numbers[2], numbers[3]};
  }
  return tl::unexpected<std::string>(
      "neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set: no mpirun has started this process");
}

}  // namespace hora::launch
