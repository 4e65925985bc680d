#include "core/trace/timeline_path.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace hora {
namespace {

constexpr std::string_view kRank = "%r";

}  // namespace

std::string wrong_with_timeline_path(std::string_view path) {
  if (path.empty()) return "the path is empty";
  // Settings travel between ranks as lines; a file's name with control characters is a mistake.
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(path, is_control)) return "the path has control characters";
  const std::filesystem::path name = std::filesystem::path(path).filename();
  std::error_code ignored;
  if (name.empty() || name == "." || name == ".." ||
      std::filesystem::is_directory(std::filesystem::path(path), ignored)) {
    return "the path names a folder, not a file";
  }
  for (std::size_t at = path.find('%'); at != path.npos; at = path.find('%', at + 1)) {
    if (path.substr(at, kRank.size()) != kRank) return "after % only r, for the rank, may follow";
  }
  return {};
}

std::string timeline_file(std::string_view path, int rank) {
  const std::string number = std::to_string(rank);
  if (path.find(kRank) == path.npos) {
    std::filesystem::path file(path);
    const std::string extension = file.extension().string();
    return file.replace_extension("." + number + extension).string();
  }
  std::string file(path);
  for (auto at = file.find(kRank); at != file.npos; at = file.find(kRank, at + number.size())) {
    file.replace(at, kRank.size(), number);
  }
  return file;
}

}  // namespace hora
