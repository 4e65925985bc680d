/// hora on a communicator of the application's, for programs that use MPI themselves. The one
/// header that includes mpi.h: such a program finds MPI by itself, the same that hora was built
/// with (find_package(hora) looks for that one).
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

/// Starts hora on the ranks of `communicator`, an intracommunicator, in the order that they have
/// there: collective over them alone, other ranks do not call it. hora works on duplicates; the
/// communicator stays the application's, which may free it at any time. In everything else, its
/// errors included, as init() of context.h, whose MPI_COMM_WORLD it takes the place of. Besides,
/// Error(invalid_argument) for MPI_COMM_NULL, for an intercommunicator, and where
/// InitOptions::ranks are given, too. Thread rule: as init() of context.h.
///
/// A template, so that nothing but an MPI_Comm is taken for one where that is a plain int (MPICH).
template <std::same_as<MPI_Comm> Communicator>
[[nodiscard("hora runs while the Context lives: keep it, as in `Context world = init();`")]] Context
init(Communicator communicator, const InitOptions& options = {}) {
  return detail::init_on(communicator, options);
}

}  // namespace hora
