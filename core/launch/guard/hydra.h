/// What a guard does otherwise under hydra, MPICH's launcher: with MPICH 4.0.2 MPI_Abort returns,
/// and the rank goes on until it is killed like the others.
#pragma once

#include <optional>
#include <string_view>

namespace hora::launch {

/// The exit status that a rank has given MPICH's MPI_Abort, from the last that it has written:
/// "Abort(7) on node 2 (rank 2 in comm 0): application called MPI_Abort(...". Empty where it has
/// called no such. Pure.
std::optional<int> status_of_abort(std::string_view last_words);

}  // namespace hora::launch
