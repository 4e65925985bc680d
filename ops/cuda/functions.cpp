#include "ops/cuda/functions.h"

#include <hora/error.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "core/base/log.h"
#include "ops/cuda/kernels.h"

namespace hora::internal {
namespace {

std::string describe(const CudaFunctions& functions, cudaError_t result, std::string_view call) {
  const char* text = functions.get_error_string(result);
  return std::string(call) + " failed: " + (text != nullptr ? text : "unknown error") + " (error " +
         std::to_string(static_cast<int>(result)) + ")";
}

/// One line: "address permissions offset device inode path". The kernel resolves symbolic links in
/// the path, and a path may have spaces.
struct Mapping {
  std::string_view permissions;
  std::string_view file;  ///< device and inode
  std::string_view path;
};

Mapping parse(std::string_view line) {
  Mapping mapping;
  std::size_t at = 0;
  const auto next_field = [&] {
    at = std::min(line.find_first_not_of(' ', at), line.size());
    const std::size_t begin = at;
    at = std::min(line.find(' ', at), line.size());
    return line.substr(begin, at - begin);
  };
  next_field();
  mapping.permissions = next_field();
  next_field();
  const std::string_view device = next_field();
  const std::string_view inode = next_field();
  mapping.file = line.substr(static_cast<std::size_t>(device.data() - line.data()),
                             static_cast<std::size_t>(inode.end() - device.begin()));
  at = std::min(line.find_first_not_of(' ', at), line.size());
  mapping.path = line.substr(at);
  return mapping;
}

/// "libnccl.so.2" and "libnccl-9335f6a2.so.2", as some packages rename their copy, are "libnccl".
bool is_named(std::string_view path, std::string_view library) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  if (!name.starts_with(library)) return false;
  name.remove_prefix(library.size());
  if (name.size() > 9 && name.front() == '-' &&
      name.substr(1, 8).find_first_not_of("0123456789abcdef") == std::string_view::npos) {
    name.remove_prefix(9);
  }
  return name == ".so" || name.starts_with(".so.") || name.starts_with(".so ");
}

std::string only_file(std::string_view maps, std::string_view library, std::string_view title) {
  const std::vector<std::string> files = loaded_files(maps, library);
  if (files.size() < 2) return files.empty() ? std::string() : files.front();
  throw Error(
      ErrorCode::invalid_use,
      std::string("this process has loaded two copies of ") + std::string(title) + ": " + files[0] +
          " and " + files[1] +
          ". hora and LibTorch must share one. Build hora and the program against the LibTorch "
          "that runs them, let LD_LIBRARY_PATH and LD_PRELOAD name no folder of the other copy, "
          "and link neither copy by its path; `ldd` of the program shows which library needs "
          "which");
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

std::vector<std::string> loaded_files(std::string_view maps, std::string_view library) {
  std::vector<std::string> paths;
  std::vector<std::string_view> seen;
  while (!maps.empty()) {
    const std::size_t end = std::min(maps.find('\n'), maps.size());
    const Mapping mapping = parse(maps.substr(0, end));
    maps.remove_prefix(std::min(end + 1, maps.size()));
    // Debuggers and profilers map libraries to read them; a loaded one has a part that is executed.
    if (mapping.permissions.find('x') == std::string_view::npos ||
        !is_named(mapping.path, library) || std::ranges::count(seen, mapping.file) > 0) {
      continue;
    }
    seen.push_back(mapping.file);
    paths.emplace_back(mapping.path);
  }
  return paths;
}

LoadedLibraries check_one_copy(std::string_view maps) {
  return {.cuda_runtime = only_file(maps, "libcudart", "CUDA's runtime (libcudart)"),
          .nccl = only_file(maps, "libnccl", "NCCL (libnccl)")};
}

LoadedLibraries check_one_copy() {
  std::ifstream file("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || maps.empty()) {
    throw Error(ErrorCode::transport,
                "cannot read /proc/self/maps, which tells what libraries this process has loaded; "
                "is /proc mounted here?");
  }
  return check_one_copy(maps);
}

namespace {

bool aligned(const void* pointer, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(pointer) % size == 0;
}

std::int64_t tile_elements(std::size_t element) {
  return static_cast<std::int64_t>(kTileBytes / element);
}

bool usable(const void* memory, std::size_t element) {
  return memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % element == 0;
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
  const std::int64_t most = kMaximumTiles * tile_elements(element);
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
  return fill_tiles(launch, pieces, tile_elements(element),
                    [&](std::size_t index, const UpdatePiece& piece) {
                      launch.parameter[index] = piece.parameter;
                      launch.gradient[index] = piece.gradient;
                      for (int s = 0; s < UpdateLaunch::kStates; ++s) {
                        launch.state[s][index] = piece.state[s];
                      }
                    });
}

}  // namespace hora::internal
