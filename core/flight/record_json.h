/// Flight records as files: one JSON object a rank, "hora-record.<rank>.json".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "core/flight/record_reader.h"

namespace hora::internal {

/// No record is longer; longer files are refused unread.
inline constexpr std::size_t kLongestRecordFile = std::size_t{4} << 20;

/// One line of ASCII for the header's fields, one for each collective. Times are nanoseconds.
std::string to_json(const FlightRecord& record);

/// What to_json() writes; of what the error names nothing else is taken: unknown versions, missing
/// fields, wrong types, numbers out of bounds, more collectives than a record has. Texts are made
/// printable. Pure.
tl::expected<FlightRecord, std::string> record_from_json(std::string_view text);

/// "<folder>/hora-record.<rank>.json".
std::string record_file(const std::string& folder, int rank);

/// Makes the folder where it is missing (mode 0700). The error says what is in the way.
tl::expected<void, std::string> make_record_folder(const std::string& folder);

/// Writes record_file() anew (mode 0600, links are not followed) in make_record_folder(); returns
/// its path.
tl::expected<std::string, std::string> write_record(const FlightRecord& record,
                                                    const std::string& folder);

}  // namespace hora::internal
