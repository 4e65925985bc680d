#include "core/launch/guard/hydra.h"

#include <charconv>

namespace hora::launch {

std::optional<int> status_of_abort(std::string_view last_words) {
  constexpr std::string_view kStart = "Abort(";
  const auto said = last_words.find("): application called MPI_Abort(");
  const auto start = last_words.substr(0, said).rfind(kStart);
  if (said == last_words.npos || start == last_words.npos) return std::nullopt;
  const std::string_view number = last_words.substr(start + kStart.size());
  int status = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), status);
  if (error != std::errc()) return std::nullopt;
  return (status & 0xff) == 0 ? 1 : status & 0xff;
}

}  // namespace hora::launch
