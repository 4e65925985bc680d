/// Which files of CUDA's runtime and of NCCL this process has loaded, from its memory map.
///
/// LibTorch's CUDA build loads both, and hora must share them: streams, events and communicators of
/// one copy mean nothing to another. A copy that was linked in statically does not show in the map.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hora::internal {

/// Empty where not loaded.
struct LoadedLibraries {
  std::string cuda_runtime;
  std::string nccl;
};

/// The distinct files mapped for execution whose name is `library` ("libnccl") and ".so", with or
/// without a version, in the map's order; `maps` is the text of /proc/<pid>/maps (proc(5)). One
/// file under several names is one; " (deleted)" follows the path of a file that was removed.
/// Plug-ins such as libnccl-net.so are other libraries.
std::vector<std::string> loaded_files(std::string_view maps, std::string_view library);

/// The one file of each. Throws Error(invalid_use) that names both where there are two of either.
LoadedLibraries check_one_copy(std::string_view maps);

/// The same for this process. Throws Error(transport) where its map cannot be read.
LoadedLibraries check_one_copy();

}  // namespace hora::internal
