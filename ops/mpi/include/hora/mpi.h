/// hora on a communicator of the application's. The one header that includes mpi.h: such a program
/// finds MPI itself, the one that hora was built with.
///
///     MPI_Comm trainers;
///     MPI_Comm_split(MPI_COMM_WORLD, is_trainer, rank, &trainers);
///     if (is_trainer) train(hora::init(trainers));
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <mpi.h>

#include <concepts>

namespace HORA_EXPORT hora {

namespace detail {
Context init_on(MPI_Comm communicator, const InitOptions& options);
}  // namespace detail

/// Starts hora on the ranks of an intracommunicator, in their order there, and on duplicates of it:
/// collective over them, else as init() of context.h. Throws Error(invalid_argument), too, for
/// MPI_COMM_NULL, an intercommunicator, and InitOptions::ranks. A template: nothing but an MPI_Comm
/// is taken, where that is an int.
template <std::same_as<MPI_Comm> Communicator>
[[nodiscard("hora runs while the Context lives: keep it, as in `Context world = init();`")]] Context
init(Communicator communicator, const InitOptions& options = {}) {
  return detail::init_on(communicator, options);
}

}  // namespace hora
