#include "ops/cuda/functions.h"

#include <fmt/format.h>
#include <hora/error.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/base/log.h"
#include "ops/cuda/kernels.h"

namespace hora::internal {
namespace {

std::string describe(const CudaFunctions& functions, cudaError_t result, std::string_view call) {
  const char* text = functions.get_error_string(result);
  return fmt::format("{} failed: {} (error {})", call, text != nullptr ? text : "unknown error",
                     static_cast<int>(result));
}

/// Distinct: one file under several names is one.
std::vector<std::string> loaded_files(std::string_view library) {
  struct Search {
    std::string_view library;
    std::vector<std::string> files;
  } search{library, {}};
  const auto visit = [](dl_phdr_info* info, std::size_t, void* data) {
    auto& [name, files] = *static_cast<Search*>(data);
    const std::string path = info->dlpi_name;
    const auto is_same = [&](const std::string& other) {
      std::error_code unknown;
      return std::filesystem::equivalent(path, other, unknown);
    };
    if (is_library(path, name) && std::ranges::none_of(files, is_same)) files.push_back(path);
    return 0;
  };
  ::dl_iterate_phdr(visit, &search);
  return search.files;
}

}  // namespace

void throw_cuda_error(const CudaFunctions& functions, cudaError_t result, std::string_view call) {
  functions.get_last_error();
  throw Error(result == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::transport,
              describe(functions, result, call));
}

void cuda_check_release(const CudaFunctions& functions, cudaError_t result,
                        std::string_view call) noexcept {
  if (result == cudaSuccess) return;
  try {
    functions.get_last_error();
    log().debug(describe(functions, result, call));
  } catch (...) {
    // Without memory for its text the failure is not reported.
  }
}

bool is_library(std::string_view path, std::string_view library) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  if (!name.starts_with(library)) return false;
  name.remove_prefix(library.size());
  if (name.size() > 9 && name.front() == '-' &&
      name.substr(1, 8).find_first_not_of("0123456789abcdef") == std::string_view::npos) {
    name.remove_prefix(9);
  }
  return name == ".so" || name.starts_with(".so.");
}

std::string only_copy(const std::vector<std::string>& files, std::string_view title) {
  if (files.size() < 2) return files.empty() ? std::string() : files.front();
  throw Error(
      ErrorCode::invalid_use,
      fmt::format(
          "this process has loaded two copies of {}: {} and {}. hora and LibTorch must share "
          "one. Build hora and the program against the LibTorch that runs them, let "
          "LD_LIBRARY_PATH and LD_PRELOAD name no folder of the other copy, and link neither "
          "copy by its path; `ldd` of the program shows which library needs which",
          title, files[0], files[1]));
}

LoadedLibraries check_one_copy() {
  return {.cuda_runtime = only_copy(loaded_files("libcudart"), "CUDA's runtime (libcudart)"),
          .nccl = only_copy(loaded_files("libnccl"), "NCCL (libnccl)")};
}

namespace {

bool aligned(const void* pointer, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(pointer) % size == 0;
}

bool usable(const void* memory, std::size_t element) {
  return memory != nullptr && aligned(memory, element);
}

}  // namespace

bool can_be_copied(std::span<const CopyPiece> pieces, std::size_t source_size,
                   std::size_t target_size) noexcept {
  const std::int64_t most = kMaximumTiles * tile_elements(source_size, target_size);
  return std::ranges::all_of(pieces, [&](const CopyPiece& piece) {
    return piece.elements == 0 ||
           (piece.elements > 0 && piece.elements <= most && piece.target != nullptr &&
            aligned(piece.source, source_size) && aligned(piece.target, target_size));
  });
}

std::span<const CopyPiece> fill_launch(std::span<const CopyPiece> pieces,
                                       std::int64_t elements_per_tile,
                                       CopyLaunch& launch) noexcept {
  return fill_tiles(launch, pieces, elements_per_tile,
                    [&](std::size_t index, const CopyPiece& piece) {
                      launch.source[index] = piece.source;
                      launch.target[index] = piece.target;
                    });
}

int states_of(const SgdStep& step) noexcept {
  return step.momentum != 0 ? 1 : 0;
}

int states_of(const AdamStep& step) noexcept {
  return step.amsgrad ? 3 : 2;
}

bool can_be_updated(std::span<const UpdatePiece> pieces, std::size_t element, int states) noexcept {
  const std::int64_t most = kMaximumTiles * tile_elements(element, element);
  return std::ranges::all_of(pieces, [&](const UpdatePiece& piece) {
    if (piece.elements == 0) return true;
    return piece.elements > 0 && piece.elements <= most && usable(piece.parameter, element) &&
           usable(piece.gradient, element) &&
           std::all_of(piece.state, piece.state + states,
                       [&](const void* state) { return usable(state, element); });
  });
}

std::span<const UpdatePiece> fill_launch(std::span<const UpdatePiece> pieces, std::size_t element,
                                         UpdateLaunch& launch) noexcept {
  return fill_tiles(launch, pieces, tile_elements(element, element),
                    [&](std::size_t index, const UpdatePiece& piece) {
                      launch.parameter[index] = piece.parameter;
                      launch.gradient[index] = piece.gradient;
                      for (int s = 0; s < UpdateLaunch::kStates; ++s) {
                        launch.state[s][index] = piece.state[s];
                      }
                    });
}

}  // namespace hora::internal
