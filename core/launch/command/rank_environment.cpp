#include "core/launch/command/rank_environment.h"

#include <hora/printable.h>

#include <array>
#include <charconv>

#include "core/launch/command/slurm.h"

namespace hora::launch {
namespace {

struct Names {
  std::string_view launcher, rank, size, local_rank, local_size;
};

constexpr std::array<Names, 3> kNames = {{
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
}};

using Number = tl::expected<int, std::string>;

Number number_of(const EnvironmentLookup& lookup, const Names& names, std::string_view name) {
  const std::optional<std::string> text = lookup(name);
  if (!text) {
    return tl::unexpected(std::string(names.launcher) + " has set " + std::string(names.rank) +
                          " but not " + std::string(name));
  }
  int number = -1;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, number);
  if (error == std::errc() && stop == end && number >= 0) return number;
  return tl::unexpected(std::string(name) + "=" + in_quotes(*text) + ", set by " +
                        std::string(names.launcher) + ", is no number of a rank");
}

/// Slurm tells how many tasks every node of the step has, and which of them this is.
Number local_size_of_slurm(const EnvironmentLookup& lookup, const Names& names) {
  const Number node = number_of(lookup, names, "SLURM_NODEID");
  if (!node) return node;
  const auto tasks = expand_counts(lookup("SLURM_STEP_TASKS_PER_NODE").value_or(""));
  if (!tasks) return tl::unexpected("SLURM_STEP_TASKS_PER_NODE: " + tasks.error());
  if (static_cast<std::size_t>(*node) < tasks->size()) {
    return (*tasks)[static_cast<std::size_t>(*node)];
  }
  return tl::unexpected("SLURM_STEP_TASKS_PER_NODE has no node " + std::to_string(*node));
}

}  // namespace

tl::expected<RankPlace, std::string> rank_of_environment(const EnvironmentLookup& lookup) {
  for (const Names& names : kNames) {
    if (!lookup(names.rank)) continue;
    const Number rank = number_of(lookup, names, names.rank);
    const Number size = number_of(lookup, names, names.size);
    const Number local_rank = number_of(lookup, names, names.local_rank);
    const Number local_size = names.local_size.empty() ? local_size_of_slurm(lookup, names)
                                                       : number_of(lookup, names, names.local_size);
    for (const Number* number : {&rank, &size, &local_rank, &local_size}) {
      if (!*number) return tl::unexpected(number->error());
    }
    if (*rank >= *size || *local_rank >= *local_size || *local_size > *size) {
      return tl::unexpected(std::string(names.launcher) + " says rank " + std::to_string(*rank) +
                            " of " + std::to_string(*size) + ", on its host " +
                            std::to_string(*local_rank) + " of " + std::to_string(*local_size));
    }
    return RankPlace{*rank, *size, *local_rank, *local_size};
  }
  return tl::unexpected(
      std::string("none of OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID is set: no mpirun has "
                  "started this process"));
}

}  // namespace hora::launch
