/// This process's host: where its memory lies, settings of the process that hora changes or checks,
/// the agreement of all ranks on settings and initial process sets, and which ranks form a node.
#pragma once

#include <hora/error.h>
#include <hora/settings.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/negotiation/topology.h"
#include "ops/cross/point_to_point.h"
#include "ops/shm/shared_memory.h"

namespace hora::internal {

/// memory_node_of_process() found none.
inline constexpr int kNoMemoryNode = -1;

/// The operating system's number of the memory (NUMA) node of all processors that the calling
/// thread may use, where what this process writes first lies. kNoMemoryNode where they belong to
/// several, or hwloc cannot tell. Reads the machine's topology, which takes some milliseconds.
int memory_node_of_process();

/// Keeps large gradients from being given back to the kernel after each step (up to 26,000 page
/// faults a step). False where this C library takes neither the large nor the small thresholds.
bool keep_large_allocations();

/// Advice where the engine shares its only core with the main thread though the host has cores that
/// no rank uses; nothing otherwise. Pure.
std::optional<std::string> binding_advice(int cores_of_rank, int cores_of_host, int ranks_of_host);

int cores_of_process();
int cores_of_host();

/// How `own` assignments disagree with rank 0's; empty where they do not. Pure.
std::string disagreement(std::span<const SettingAssignment> own, int rank,
                         std::span<const SettingAssignment> of_rank_0);

/// The settings of one process: from its environment, and from the options of init().
struct ProcessSettings {
  std::vector<SettingAssignment> assignments;  ///< of the environment where both set one alike
  std::string wrong = {};                      ///< with what the program has given; empty: nothing
  std::string conflict = {};  ///< a setting that both set, differently; empty: none
};
/// Pure.
ProcessSettings settings_of_process(std::vector<SettingAssignment> of_environment,
                                    const Settings& given);

/// The settings of the whole job from what each process sets. Collective; throws the same
/// Error(invalid_setting), or Error(invalid_argument) of a conflict, on every rank.
Settings agree_on_settings(Bootstrap& world, const ProcessSettings& of_process);

/// Throws Error(code) with the text of the lowest rank that has one, on every rank. Collective.
void throw_together(Bootstrap& world, const std::string& text, ErrorCode code);

/// Says what is wrong with lists of ranks, one text a rank, where not all are rank 0's; empty:
/// nothing. Pure.
std::string sets_disagreement(const std::vector<std::string>& by_rank);

/// Collective. Throws the same Error(mismatch) on every rank.
void agree_on_sets(Bootstrap& world, const std::vector<std::vector<int>>& sets);

/// The world cut into nodes, and this rank's memory connected to its node's.
struct NodeDiscovery {
  Topology topology;
  std::unique_ptr<SharedMemory> memory;
  int host_rank = 0;  ///< this rank's place among the ranks of its host, virtual nodes or not
  int host_size = 1;
  std::uint64_t smallest_memory = 0;  ///< bytes of the host, of all, that has fewest
  bool over_sockets = false;          ///< there are several hosts, and none has an active RDMA port
  std::vector<int> memory_nodes = {};  ///< by rank: memory_node_of_process()
};

/// Groups of candidates: each candidate joins the first group all of whose members it can reach and
/// who can reach it, else it begins a group. `reach[i][j]`: candidate i has mapped j's window.
/// Gives for each candidate the first member of its group. Pure.
std::vector<int> group_by_reach(const std::vector<std::vector<bool>>& reach);

/// Says why a host's ranks are not one group: the groups, by their ranks in the job (`ranks`, by
/// candidate), and the first of the candidates' `reasons` that is not empty. Empty where they are
/// one. Pure.
std::string separation_text(const std::vector<int>& group, const std::vector<int>& ranks,
                            const std::vector<std::string>& reasons);

/// Finds the nodes; a rank that cannot map its host's others becomes a node of its own, with a
/// warning. Groups are cut into virtual nodes of `ranks_per_node` (0: whole hosts). Collective.
/// Throws Error(transport).
NodeDiscovery discover_nodes(Bootstrap& world, int ranks_per_node);

}  // namespace hora::internal
