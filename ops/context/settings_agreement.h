/// Rank 0's settings hold for all; a rank that was given others is an error on every rank.
#pragma once

#include <hora/error.h>
#include <hora/settings.h>

#include <span>
#include <string>
#include <vector>

namespace hora {

class Communicator;

/// What is wrong with `mine` beside rank 0's assignments, empty where nothing is. Pure.
std::string disagreement(std::span<const SettingAssignment> mine, int rank,
                         std::span<const SettingAssignment> of_rank_0);

/// The settings of the whole job from what each process's environment sets. Collective; throws the
/// same Error(invalid_setting) on every rank.
Settings agree_on_settings(const Communicator& world,
                           std::span<const SettingAssignment> of_process);

/// Throws Error(code) with the text of the lowest rank that has one, on every rank. Collective.
void throw_together(const Communicator& world, const std::string& text, ErrorCode code);

}  // namespace hora
