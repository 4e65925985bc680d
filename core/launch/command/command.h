/// Programs to start, as values: command lines, files and environments, of ranks and of other
/// hosts; what launchers have told a process of its rank; a Slurm allocation's hosts.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/options/hosts.h"

namespace hora::launch {

struct Variable {
  std::string name;
  std::string value;

  bool operator==(const Variable&) const = default;
};

struct Command {
  /// arguments[0] is the program's path. Executed as it is: nothing goes through a shell.
  std::vector<std::string> arguments;
  /// Set on top of the environment that the process inherits.
  std::vector<Variable> environment;

  bool operator==(const Command&) const = default;
};

/// One word as a POSIX shell reads it back: as it is where that is safe, else in single quotes.
/// No value holds a zero byte.
std::string as_shell_word(std::string_view word);

/// `NAME=value... program argument...` in one line, which a POSIX shell reads back as the same
/// command. A line feed within a word stays one, within quotes.
std::string as_shell_line(const Command& command);

/// The command by which a POSIX shell becomes the program at the end of `text`, which mpirun writes
/// for the shell of another host: assignments and exports, then one command (its daemon).
std::vector<std::string> shell_command(std::string text);

/// `./train --epochs 3` as one word, `./train,--epochs,3`, in which mpirun finds no options of its
/// own. Bytes other than [A-Za-z0-9._/=+-] are written as %XX (RFC 3986, 2.1), a dash at the
/// beginning, too. At least one word.
std::string encode_words(const std::vector<std::string>& words);

/// The error says at which byte the text is none of encode_words().
tl::expected<std::vector<std::string>, std::string> decode_words(std::string_view text);

/// The executable file `name` on `search_path`, absolute; `name` itself where it holds a slash.
/// Empty: none.
std::string find_program(const std::string& name, std::string_view search_path);

/// A path that is not absolute, from `folder`; a name without a slash, which PATH is searched for,
/// as it is. Pure.
std::string program_from(const std::string& folder, const std::string& program);

/// The path of `program`, a path or a name on `search_path`, as execvp finds it. Nothing of it is
/// executed. The error says what is wrong: not there, a folder, not executable by this user.
tl::expected<std::string, std::string> inspect_program(const std::string& program,
                                                       std::string_view search_path);

/// True of names that libraries for training read (HORA_*, NCCL_*, OMP_*, ...), of search paths,
/// and of MPI's own settings (OMPI_MCA_*); false of what belongs to one host or one process (HOME,
/// SSH_*, SLURM_*, HORARUN_*, PMIX_*), and of everything else.
bool is_forwarded(std::string_view name);

/// This process's own, as `NAME=value` entries, until something in it is set.
std::span<const char* const> environment_of_process() noexcept;
/// One of them; nothing where it is not set.
std::optional<std::string> variable_of_process(std::string_view name);

/// Values by name.
using Variables = std::map<std::string, std::string>;

/// Those of `environment` (`NAME=value`) that are forwarded by themselves or named by the user (-x
/// NAME), without those whose name is none.
Variables forwarded_variables(std::span<const char* const> environment,
                              const std::vector<std::string>& named);

/// Tells NCCL (exact names, by "="), Gloo and libfabric (one name) and UCX the interfaces of a
/// host, the first preferred. With active RDMA ports UCX is told none, which would keep it from
/// them.
std::vector<Variable> network_variables(const std::vector<std::string>& interfaces, bool has_rdma);

/// Which rank a process is.
struct RankPlace {
  int rank = 0;
  int size = 1;        ///< of the world
  int local_rank = 0;  ///< among the ranks on this host
  int local_size = 1;

  bool operator==(const RankPlace&) const = default;
};

/// A variable's value, where it is set.
using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;

/// As Open MPI 3 to 5 and hydra tell it. The error says what is missing or wrong.
tl::expected<RankPlace, std::string> rank_of_environment(const EnvironmentLookup& lookup);

/// Slurm's numbers by node: `2(x3),1` is 2 2 2 1; of at most kMostRanks nodes.
tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text);

/// The hosts of a Slurm allocation with their slots: tasks where the job has asked for a number of
/// tasks, else cores (divided by those of a task). Empty outside of an allocation. Slurm's scontrol
/// expands the list of hosts.
tl::expected<std::vector<HostSlots>, std::string> slurm_hosts(const EnvironmentLookup& lookup);

/// The words before a command that start it once on `host`, with this environment and this
/// process's stdin and stdout, on cores that other steps use, too (--overlap, Slurm 20.11).
std::vector<std::string> srun_prefix(const std::string& srun, const std::string& host);

}  // namespace hora::launch
