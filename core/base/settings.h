/// Settings beside those of hora/settings.h: variables named HORA_* that are not meant for hora,
/// and the paths in settings. Pure, but for a look at what a path names.
#pragma once

#include <hora/settings.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hora::internal {

/// True of names that module systems set for every package (HORA_ROOT, HORA_LIB, ...), and of those
/// in `allowed` (HORA_ALLOW_UNKNOWN's text). Never of a setting.
bool is_foreign(std::string_view variable, std::string_view allowed);

/// HORA_ALLOW_UNKNOWN's text; empty where it is not among them.
std::string allowed_unknown(std::span<const SettingAssignment> assignments);

/// Those that are meant for hora, where rank 0's HORA_ALLOW_UNKNOWN is `allowed_by_rank_0`.
std::vector<SettingAssignment> without_foreign(std::span<const SettingAssignment> assignments,
                                               std::string_view allowed_by_rank_0);

/// Why a text cannot be the path of timelines (no folder: the rank would be put beside it); empty
/// where it can.
std::string wrong_with_timeline_path(std::string_view path);

}  // namespace hora::internal
