/// Agreement of all ranks on the settings and on the initial process sets.
#pragma once

#include <hora/error.h>
#include <hora/settings.h>

#include <span>
#include <string>
#include <vector>

#include "ops/cross/point_to_point.h"

namespace hora::internal {

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

/// What is wrong with lists of ranks, one text a rank, where not all are rank 0's; empty: nothing.
/// Pure.
std::string sets_disagreement(const std::vector<std::string>& by_rank);

/// Collective. Throws the same Error(mismatch) on every rank.
void agree_on_sets(Bootstrap& world, const std::vector<std::vector<int>>& sets);

}  // namespace hora::internal
