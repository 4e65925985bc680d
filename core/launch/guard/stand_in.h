/// The process that MPI's launcher takes for a rank, in its guard's place.
///
/// What fails or is aborted MPI's launchers end by SIGKILL, with its process group: hydra at once,
/// and Open MPI's mpirun as soon as a first rank has followed its SIGTERM (its wait of a second
/// ends with any signal). A guard that ended so could neither say how its rank has ended nor write
/// its flight record.
#pragma once

namespace hora::launch {

/// What the process is called (ps -o comm).
inline constexpr char kStandInName[] = "horarun-standin";

/// Returns in a child of this process, which leads a group of its own. The process that was there
/// before passes on signals to the child, and ends with its exit status (128 + signal), or when its
/// own parent ends. Does nothing where there is no further process to be had. For a process of one
/// thread.
void leave_stand_in();

}  // namespace hora::launch
