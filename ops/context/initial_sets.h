/// Process sets that hora begins with: every rank must have been given the same.
#pragma once

#include <string>
#include <vector>

namespace hora {

class Communicator;

/// What is wrong with lists of ranks, one text a rank, where not all are rank 0's; empty: nothing.
/// Pure.
std::string sets_disagreement(const std::vector<std::string>& by_rank);

/// Collective. Throws the same Error(mismatch) on every rank.
void agree_on_sets(const Communicator& world, const std::vector<std::vector<int>>& sets);

}  // namespace hora
