/// The parent of one rank: starts its program, passes on its output and its signals, and says how
/// it ended. mpirun starts it in the program's place.
#pragma once

#include <span>
#include <string>

namespace hora::launch {

/// The variable that names the file that rank 0 reads on standard input, where it runs on
/// horarun's host: Open MPI 5.0.11 does not pass on the end of its own input.
inline constexpr char kInputVariable[] = "HORARUN_INPUT";

/// `arguments`: the way of binding (Binding), and the program with its arguments in one word
/// (encode_words()).
/// Until the program has ended; the exit status for this process: the program's, or 128 and the
/// signal that killed it. The rank ends with SIGKILL where its guard, the agent, or the process
/// that started the guard ends.
int run_guard(std::span<const std::string> arguments);

/// sigqueue()'s value with a signal that the stand-in passes on from its parent, which is MPI's.
inline constexpr int kSentByMpi = 1;

/// What the process is called that stands in for the guard (ps -o comm).
inline constexpr char kStandInName[] = "horarun-standin";

/// Leaves a process that MPI's launcher takes for the rank, in the guard's place: what fails or is
/// aborted MPI's launchers end by SIGKILL, with its process group: hydra at once, and Open MPI's
/// mpirun as soon as a first rank has followed its SIGTERM (its wait of a second ends with any
/// signal). A guard that ended so could neither say how its rank has ended nor write its flight
/// record.
///
/// Returns in a child of this process, which leads a group of its own. The process that was there
/// before passes on signals to the child, and ends with its exit status (128 + signal), or when its
/// own parent ends. Does nothing where there is no further process to be had. For a process of one
/// thread.
void leave_stand_in();

}  // namespace hora::launch
