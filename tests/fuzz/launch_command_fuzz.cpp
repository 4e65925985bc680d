// Texts of mpirun, Slurm and cgroups that horarun reads: refused with a reason, or values within
// their bounds. The first byte chooses the reader.
#include <algorithm>
#include <string>

#include "core/launch/command/command.h"
#include "core/launch/command/cores.h"
#include "core/launch/command/mpi.h"
#include "tests/fuzz/require.h"

namespace {

using namespace hora::launch;

void counts(const std::string& text) {
  const auto numbers = expand_counts(text);
  if (!has_value_or_reason(numbers)) return;
  HORA_REQUIRE(!numbers->empty() && numbers->size() <= kMostRanks);
  HORA_REQUIRE(std::ranges::all_of(*numbers, [](int number) { return number > 0; }));
}

void words(const std::string& text) {
  const auto decoded = decode_words(text);
  if (decoded) HORA_REQUIRE(*decode_words(encode_words(*decoded)) == *decoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'C') {
    counts(text);
  } else if (data[0] == 'W') {
    words(text);
  } else if (data[0] == 'V') {
    static_cast<void>(parse_mpi_version("mpirun", text));
  } else {
    HORA_REQUIRE(cgroup_cpu_limit([&](const std::string&) { return text; }) >= 0);
  }
  return 0;
}
