/// Where timelines are written: rules for paths.
#pragma once

#include <string>
#include <string_view>

namespace hora {

/// Why `path` cannot name timelines; empty where it can. A folder of that name cannot: the rank
/// would be put after its name, beside it.
std::string wrong_with_timeline_path(std::string_view path);

/// `path` with each "%r" replaced by the rank. Where it has none, ".<rank>" is put before the file
/// name's extension, so that ranks never share a file: "a/t.json" -> "a/t.3.json".
std::string timeline_file(std::string_view path, int rank);

}  // namespace hora
