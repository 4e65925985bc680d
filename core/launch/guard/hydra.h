/// What a guard does otherwise under hydra, MPICH's launcher.
///
/// As soon as a rank calls MPI_Abort, hydra ends by SIGKILL all that it has started, with their
/// process groups: a guard that it had started could not say any more which rank that was. And with
/// MPICH 4.0.2 MPI_Abort returns, and the rank goes on until it is killed like the others.
#pragma once

#include <optional>
#include <string_view>

namespace hora::launch {

/// What the process is called that waits for a guard (ps -o comm).
inline constexpr char kStandInName[] = "horarun-standin";

/// Returns in a child of this process, which leads a group of its own. The process that was there
/// before waits for the child and ends with its exit status (128 + signal). Does nothing outside of
/// hydra, or where there is no further process to be had. For a process of one thread.
void leave_stand_in_to_hydra();

/// The exit status that a rank has given MPICH's MPI_Abort, from the last that it has written:
/// "Abort(7) on node 2 (rank 2 in comm 0): application called MPI_Abort(...". Empty where it has
/// called no such. Pure.
std::optional<int> status_of_abort(std::string_view last_words);

}  // namespace hora::launch
