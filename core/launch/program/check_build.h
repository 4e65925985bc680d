/// This hora's build, and what this host has for it (--check-build).
#pragma once

#include <span>
#include <string>

namespace hora::launch {

/// Lines that begin with their subject: what there is, or what is missing and how to get it. `self`
/// is the path of this program, `mpirun` the value of --mpirun. Takes a second at most, but where a
/// library hangs: 20 s then.
std::string check_build(const std::string& self, const std::string& mpirun);

/// `horarun --query-library mpi|nccl|cuda-driver FILE...`: loads the first file that can be loaded,
/// and prints what it says of itself in one line; the exit status. A process of its own, so that
/// horarun needs none of them, and whatever goes wrong in them ends that process alone.
int run_library_query(std::span<const std::string> arguments);

}  // namespace hora::launch
