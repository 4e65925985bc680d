/// What a shared library says of itself. It is loaded by a process of its own, so that horarun
/// needs none of them, and whatever goes wrong in them ends that process alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

enum class Library {
  mpi,          ///< "Open MPI v4.1.4..., MPI_THREAD_MULTIPLE": what MPI_Init_thread() grants
  nccl,         ///< "2.19.3"
  cuda_driver,  ///< "12.4": the newest CUDA that it supports
};

/// `horarun --query-library LIBRARY FILE...`, in that process: loads the first file that can be
/// loaded, and prints its answer in one line after kAnswer; the exit status.
int run_library_query(std::span<const std::string> arguments);

/// Starts it: `self` is the path of this program, `files` are paths or names that the dynamic
/// linker searches for. The error says what was tried and what failed. Takes a second at most, but
/// where the library hangs.
tl::expected<std::string, std::string> query_library(const std::string& self, Library library,
                                                     const std::vector<std::string>& files);

/// The answer among all that the process has printed, for MPI has words of its own. Pure.
tl::expected<std::string, std::string> answer_of(std::string_view output);

}  // namespace hora::launch
