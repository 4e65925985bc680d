/// Process sets: some of the world's ranks, among whom collectives run.
///
///     std::vector<int> even;
///     for (int rank = 0; rank < world.size(); rank += 2) even.push_back(rank);
///     hora::ProcessSet evens = hora::add_process_set(world, even);              // on every rank
///     if (hora::rank_in(world, evens) >= 0)
///       hora::allreduce(world, hora::view(values), {.process_set = evens});
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>

#include <vector>

namespace HORA_EXPORT hora {

/// Makes a set of these world ranks. Collective over the world, members or not, in the same order
/// of calls. Sets may overlap. Throws Error(invalid_argument) for an empty list, an unknown rank or
/// one given twice, and the same Error(mismatch) on every rank where the lists differ.
ProcessSet add_process_set(const Context& context, const std::vector<int>& ranks);

/// Collective over the world. Throws Error(invalid_use) while a handle of this set is open on this
/// rank, Error(invalid_argument) for the world and unknown sets.
void remove_process_set(const Context& context, ProcessSet set);

/// Returns its world ranks, ascending. These throw Error(invalid_argument) for unknown sets.
std::vector<int> ranks_of(const Context& context, ProcessSet set);
/// Returns this rank's place among them; -1 where it is no member.
int rank_in(const Context& context, ProcessSet set);
int size_of(const Context& context, ProcessSet set);

}  // namespace hora
